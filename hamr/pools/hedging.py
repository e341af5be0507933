"""Hedging: when a request takes unusually long, a second replica is asked too, and the first answer counts.

A request is late when it has waited longer than max(floor, q-quantile of the pool's last request times). What a second
try may cost is bounded by a token bucket: every question earns `budget_frac` of a second try, one second try of a
question spends 1, and at most `burst` are saved up. It starts empty, so that at any time

    questions put twice <= budget_frac * questions asked.

Dean and Barroso, The Tail at Scale (2013). Pure: sending is a callable, the clock is injected.
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
class Raced(Generic[T]):
    """The answer that came first. `hedged`: two tries were made; `second`: it is the later one's."""

    answer: T
    hedged: bool = False
    second: bool = False


class Hedger:
    """One pool's request times and its budget. Lives in one event loop."""

    def __init__(self, config: HedgeConfig, clock: Callable[[], float]) -> None:
        """`clock` in seconds, monotonic."""
        self._config, self._clock = config, clock
        self._times: deque[float] = deque(maxlen=config.window)
        self._asked = 0
        self.spent = 0
        """Questions that were put a second time."""
        self._lapsed = 0.0
        """Budget that was earned while the bucket was full."""

    @property
    def budget(self) -> float:
        """Second tries, in questions, that may be made now."""
        # From whole counts: a running sum of fractions would drift.
        return self._config.budget_frac * self._asked - self._lapsed - self.spent

    def asked(self, questions: int) -> None:
        """So many questions have been asked; each earns its part of a second try."""
        self._asked += questions
        self._lapsed += max(0.0, self.budget - self._config.burst)

    def record_served(self, seconds: float) -> None:
        """A request was answered so long after it was sent."""
        self._times.append(seconds)

    def late_after_s(self) -> float | None:
        """How long a request may take before it is late; None while too few times are known."""
        if len(self._times) < self._config.min_count:
            return None
        return max(self._config.floor_s, float(np.quantile(list(self._times), self._config.quantile)))

    def spend(self, questions: int) -> bool:
        """Takes the budget for a second try of so many questions: all of it, or nothing and False."""
        if questions > self.budget:
            return False
        self.spent += questions
        return True

    async def first(
        self, send: Callable[[], Awaitable[T]], again: Callable[[], Awaitable[T]], questions: int
    ) -> Raced[T]:
        """The answer of `send`, or, when that is late and the budget allows, of `again` if it comes sooner.

        Whoever loses is cancelled. A try that raises leaves the race; if none is left, the first try's error is
        raised. An error before the second try was due is raised at once: what it asks for is a retry, not a hedge.
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
            # The winner's own time: a loser's is unknown, and one that counts from the first try's start would move
            # the very limit that it was held against.
            self.record_served(seconds)
            return Raced(answer=answer, hedged=len(tries) > 1, second=winner is not tries[0])
        finally:
            for task in tries:
                task.cancel()
            await asyncio.gather(*tries, return_exceptions=True)

    async def _time(self, send: Callable[[], Awaitable[T]]) -> tuple[T, float]:
        started = self._clock()
        return await send(), self._clock() - started


async def _first_answered(tries: Sequence[asyncio.Future[T]]) -> asyncio.Future[T]:
    """The first to end without an error; on a tie the earlier try. If all raised: the first one, for its error."""
    waiting = set(tries)
    while waiting:
        _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in tries:
            if task.done() and not task.cancelled() and task.exception() is None:
                return task
    return tries[0]
