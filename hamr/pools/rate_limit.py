"""How many questions an endpoint is asked at a time, once it has said that they are too many (HTTP 429).

One pace per endpoint in a process, whichever pools ask it: a service limits its customer, not his pools. Nothing is
limited until the first refusal. Then

    limit <- max(1, asked / 2)            at a refusal, once for those that were under way together
    limit <- limit + 1                    after `limit` answers without one

(additive increase, multiplicative decrease, as in TCP's congestion control), and nobody asks before the time that the
refusal names; where it names none, after 1 s, 2 s, ... up to 60 s. The clock and the sleep are injected.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 60.0
MOST_IN_A_ROW = 8
"""Some four minutes of growing waits."""


class Pace:
    """`admit` before a request, `settle` after it. Lives in one event loop."""

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
        """Most questions under way; None: any number."""
        self.under_way = 0
        self.in_a_row = 0
        """Refusals since the endpoint last answered anything."""

    @property
    def exhausted(self) -> bool:
        """Whether waiting has been no use for so long that the endpoint counts as away: a quota that is used up."""
        return self.in_a_row >= MOST_IN_A_ROW

    async def admit(self, wanted: int) -> int:
        """How many of `wanted` questions may be asked now; waits until one may. 0 where the endpoint is exhausted and
        still wants to be left alone."""
        while True:
            pause_s = self._until - self._clock()
            if pause_s > 0 and self.exhausted:
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
        """How the questions of one `admit` ended. `answered`: those that the endpoint took. `retry_in_s`: None where it
        refused none, else how long it wants to be left alone (0: it did not say)."""
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
        self.in_a_row += 1
        self._answered = 0
        told = retry_in_s > 0
        # What was asked before an earlier refusal was known says nothing about the limit that followed it.
        if now >= self._until:
            self.limit = max(1, asked // 2)
            self._until = now + (retry_in_s if told else self._wait_s)
            self._wait_s = min(2 * self._wait_s, LONGEST_WAIT_S)
        elif told:
            self._until = max(self._until, now + retry_in_s)


_PACES: dict[tuple[asyncio.AbstractEventLoop, str], Pace] = {}


def pace_of(endpoint: str) -> Pace:
    """The pace of an endpoint in the running event loop, the same for every pool that names it."""
    loop = asyncio.get_running_loop()
    for gone in [key for key in _PACES if key[0].is_closed()]:
        del _PACES[gone]
    return _PACES.setdefault((loop, endpoint.rstrip("/")), Pace())
