"""Adaptive concurrency limit per endpoint, in response to HTTP 429.

All pools of a process share one limit per endpoint, because a service limits its customer, not single pools. There is
no limit until the first refusal. Then

    limit <- max(1, asked / 2)            at a refusal, once for all requests that were under way together
    limit <- limit + 1                    after `limit` answers without a refusal

(additive increase, multiplicative decrease, as in TCP's congestion control). No request is sent before the time that
the refusal names, at most for 600 s; if it names none, the delay is 1 s, 2 s, ... up to 60 s. The clock and the sleep
are injected.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
LONGEST_NAMED_S = 600.0
"""Longest delay in seconds that a refusal may name. A longer one is cut to it."""
MOST_IN_A_ROW = 8
"""About four minutes of growing delays."""


class Pace:
    """Adaptive limit of one endpoint. Call `admit` before a request and `settle` after it. Use in one event loop."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._clock, self._sleep = clock, sleep
        self._free = asyncio.Event()
        self._until = 0.0
        self._wait_s = FIRST_WAIT_S
        self._answered = 0
        self.limit: int | None = None
        """Maximum number of questions under way; None for no limit."""
        self.under_way = 0
        self.in_a_row = 0
        """Consecutive refusals since the endpoint's last answer. Those of requests sent together count once."""

    @property
    def is_exhausted(self) -> bool:
        """Return whether the endpoint counts as unavailable, e.g. because its quota is exhausted."""
        return self.in_a_row >= MOST_IN_A_ROW

    async def admit(self, wanted: int) -> int:
        """Wait until a question may be sent; return how many of `wanted` may be.

        Returns 0 if the endpoint is exhausted and its retry delay has not passed.
        """
        while True:
            pause_s = self._until - self._clock()
            if pause_s > 0 and self.is_exhausted:
                return 0
            if pause_s > 0:
                await self._sleep(pause_s)
                continue
            if self.limit is None or self.under_way < self.limit:
                taken = wanted if self.limit is None else min(wanted, self.limit - self.under_way)
                self.under_way += taken
                return taken
            self._free.clear()
            await self._free.wait()

    def settle(self, taken: int, *, answered: int, retry_in_s: float | None) -> None:
        """Record the results of the questions of one `admit`.

        Args:
            taken: Questions that `admit` returned.
            answered: Questions that the endpoint answered.
            retry_in_s: Retry delay of a refusal (0 if it names none); None if no question was refused.
        """
        asked, now = self.under_way, self._clock()
        self.under_way -= taken
        self._free.set()
        if answered:
            self.in_a_row, self._wait_s = 0, FIRST_WAIT_S
        if retry_in_s is None:
            self._answered += answered
            if self.limit is not None and self._answered >= self.limit:
                self.limit, self._answered = self.limit + 1, 0
            return
        self._answered = 0
        names_delay, retry_in_s = retry_in_s > 0, min(retry_in_s, LONGEST_NAMED_S)
        # Requests sent before an earlier refusal was known say nothing about the limit that followed it.
        if now >= self._until:
            self.in_a_row += 1
            self.limit = max(1, asked // 2)
            self._until = now + (retry_in_s if names_delay else self._wait_s)
            self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)
        elif names_delay:
            self._until = max(self._until, now + retry_in_s)


_PACES: dict[tuple[asyncio.AbstractEventLoop, str], Pace] = {}


def pace_of(endpoint: str) -> Pace:
    """Return the pace of an endpoint in the running event loop. Pools that use the same endpoint share it."""
    loop = asyncio.get_running_loop()
    for gone in [key for key in _PACES if key[0].is_closed()]:
        del _PACES[gone]
    return _PACES.setdefault((loop, endpoint.rstrip("/")), Pace())
