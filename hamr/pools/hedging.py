"""Request hedging: send a late request to a second replica as well and use the first answer.

A request is late when it has waited longer than max(floor, q-quantile of the pool's last request times). A token bucket
bounds the cost of hedged requests: every question earns `budget_frac` tokens, hedging a question spends 1, and the
bucket holds at most `burst`. The bucket starts empty, so that always

    questions hedged <= budget_frac * questions sent.

Reference: Dean and Barroso, The Tail at Scale (2013). Pure: sending is a callable, the clock is injected.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from hamr.config.faults import HedgeConfig

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class HedgedAnswer(Generic[T]):
    """First answer of a request. `hedged`: two tries were made. `second`: the answer is that of the second try."""

    answer: T
    hedged: bool = False
    second: bool = False


class Hedger:
    """Request times and hedging budget of one pool. Use in one event loop."""

    def __init__(self, config: HedgeConfig, clock: Callable[[], float]) -> None:
        """Create a hedger with an empty budget. `clock` returns monotonic seconds."""
        self._config, self._clock = config, clock
        self._times: deque[float] = deque(maxlen=config.window)
        self._asked = 0
        self.spent = 0
        """Number of questions that were sent a second time."""
        self._lapsed = 0.0
        """Budget earned while the bucket was full."""

    @property
    def budget(self) -> float:
        """Budget for hedged requests, in questions."""
        # Computed from integer counts, because a running sum of fractions would drift.
        return self._config.budget_frac * self._asked - self._lapsed - self.spent

    def record_sent(self, questions: int) -> None:
        """Record that questions were sent; each earns its share of the budget."""
        self._asked += questions
        self._lapsed += max(0.0, self.budget - self._config.burst)

    def record_served(self, seconds: float) -> None:
        """Record the latency of an answered request."""
        self._times.append(seconds)

    def late_after_s(self) -> float | None:
        """Return the seconds after which a request is late, or None while too few latencies are known."""
        if len(self._times) < self._config.min_count:
            return None
        return max(self._config.floor_s, float(np.quantile(list(self._times), self._config.quantile)))

    def spend(self, questions: int) -> bool:
        """Take the budget for hedging this many questions. Return False, and take nothing, if it does not suffice."""
        if questions > self.budget:
            return False
        self.spent += questions
        return True

    async def first(
        self, send: Callable[[], Awaitable[T]], again: Callable[[], Awaitable[T]], questions: int
    ) -> HedgedAnswer[T]:
        """Return the answer of `send`, or that of `again` if `send` is late, the budget suffices and `again` is faster.

        The slower try is cancelled. A try that raises is dropped; if both raise, the first try's error is raised. An
        error before the hedging time is raised immediately: it calls for a retry, not a hedge.
        """
        tries = [asyncio.ensure_future(self._time(send))]
        try:
            late = self.late_after_s()
            if late is not None:
                await asyncio.wait(tries, timeout=late)
                if not tries[0].done() and self.spend(questions):
                    tries.append(asyncio.ensure_future(self._time(again)))
            winner = await _first_answered(tries)
            answer, seconds = winner.result()
            # Record the winner's own latency. The loser's is unknown, and a latency counted from the first try's start
            # would shift the limit that it was compared with.
            self.record_served(seconds)
            return HedgedAnswer(answer=answer, hedged=len(tries) > 1, second=winner is not tries[0])
        finally:
            for task in tries:
                task.cancel()
            await asyncio.gather(*tries, return_exceptions=True)

    async def _time(self, send: Callable[[], Awaitable[T]]) -> tuple[T, float]:
        started = self._clock()
        return await send(), self._clock() - started


async def _first_answered(tries: Sequence[asyncio.Future[T]]) -> asyncio.Future[T]:
    """Return the first to end without an error; on a tie the earlier try. If all raised, return the first one."""
    waiting = set(tries)
    while waiting:
        _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in tries:
            if task.done() and not task.cancelled() and task.exception() is None:
                return task
    return tries[0]
