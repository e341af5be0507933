"""Circuit breaker of a pool, over a sliding window of recent answers. Pure; the clock is injected.

    closed --failure rate over a window--> open --cool-down--> half open --all probes answered--> closed
                                              ^----------------one probe failed----------'

Published circuit breakers for Python count consecutive failures or failures since a reset, use one process-wide object
per callee, and wrap the call. Here the breaker must also open for a pool that fails every second question (its failures
are never consecutive). It counts typed answers rather than exceptions, and a refusal reports for how long it holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal

from hamr.config.faults import BreakerConfig

BreakerState = Literal["closed", "open", "half_open"]

PROBING_S = 1.0
"""Retry delay that a refusal reports while probes are under way, whose duration is unknown."""


class Breaker:
    """Circuit breaker. Call `admit` before and `settle` after each question. Not thread-safe; use in one event loop."""

    def __init__(self, config: BreakerConfig, clock: Callable[[], float]) -> None:
        """Create a closed breaker. `clock` returns monotonic seconds."""
        self._config, self._clock = config, clock
        self._ended: deque[tuple[float, bool]] = deque()
        self._failed = 0
        self._era = 0
        """Number of state changes. Results of questions admitted in an earlier era are ignored."""
        self._open_until: float | None = None
        self._probes_out = self._probes_answered = 0
        self._half_open = False
        self.openings = 0

    @property
    def state(self) -> BreakerState:
        if self._half_open or (self._open_until is not None and self._clock() >= self._open_until):
            return "half_open"
        return "closed" if self._open_until is None else "open"

    def admit(self) -> int | None:
        """Return a ticket for one question, or None if refused. At most `probes` are out at a time if half-open."""
        state = self.state
        if state == "open":
            return None
        if state == "half_open":
            if not self._half_open:
                self._turn()
                self._half_open, self._probes_out, self._probes_answered = True, 0, 0
            if self._probes_out + self._probes_answered >= self._config.probes:
                return None
            self._probes_out += 1
        return self._era

    def retry_in_s(self) -> float:
        """Return the seconds after a refusal until a retry may succeed."""
        if self._open_until is None or self._half_open:
            return PROBING_S
        return max(0.0, self._open_until - self._clock())

    def settle(self, ticket: int, answered: bool | None) -> None:
        """Record the result of an admitted question. None means it was cancelled, which does not count for the pool."""
        if ticket != self._era:
            return
        if self._half_open:
            self._probes_out -= 1
            if answered is None:
                return
            if not answered:
                self._open()
                return
            self._probes_answered += 1
            if self._probes_answered >= self._config.probes:
                self._turn()
                self._open_until, self._half_open = None, False
            return
        if answered is not None:
            self._count(answered)

    def _count(self, answered: bool) -> None:
        now = self._clock()
        self._ended.append((now, answered))
        self._failed += not answered
        while self._ended[0][0] < now - self._config.window_s:
            self._failed -= not self._ended.popleft()[1]
        count = len(self._ended)
        # Only a failure opens the breaker: when an old failure leaves the window, a good answer must not cause an
        # outage.
        if not answered and count >= self._config.min_count and self._failed >= self._config.failure_frac * count:
            self._open()

    def _open(self) -> None:
        self._turn()
        self._open_until, self._half_open = self._clock() + self._config.cooldown_s, False
        self.openings += 1

    def _turn(self) -> None:
        """Reset the statistics on a change of state."""
        self._era += 1
        self._ended.clear()
        self._failed = 0
