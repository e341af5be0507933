"""A circuit breaker: whether a pool may be asked, from how its last questions ended. Pure; the clock is injected.

    closed --share of failures over a window--> open --cool-down--> half open --all probes answered--> closed
                                                  ^----------------one probe failed----------'

The published breakers for Python count failures in a row or since a reset, one process-wide object per callee, and
wrap the call. Here a pool that answers every second question must open too (its failures are never in a row), what
counts is a typed answer and no exception, and a refusal has to say how long it holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Literal

from hamr.config.faults import BreakerConfig

State = Literal["closed", "open", "half_open"]

PROBING_S = 1.0
"""What a refusal says while the probes are under way: they end when they end."""


class Breaker:
    """`admit` before each question, `settle` after it. Not thread-safe; lives in one event loop."""

    def __init__(self, config: BreakerConfig, clock: Callable[[], float]) -> None:
        """`clock` in seconds, monotonic."""
        self._config, self._clock = config, clock
        self._ended: deque[tuple[float, bool]] = deque()
        self._failed = 0
        self._era = 0
        """Goes up at every change of state: what was admitted in another era says nothing about this one."""
        self._open_until: float | None = None
        self._probes_out = self._probes_answered = 0
        self._half_open = False
        self.openings = 0

    @property
    def state(self) -> State:
        if self._half_open or (self._open_until is not None and self._clock() >= self._open_until):
            return "half_open"
        return "closed" if self._open_until is None else "open"

    def admit(self) -> int | None:
        """A ticket for one question, or None: refused. In the half-open state at most `probes` are out at a time."""
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
        """After a refusal: seconds until asking again may help."""
        if self._open_until is None or self._half_open:
            return PROBING_S
        return max(0.0, self._open_until - self._clock())

    def settle(self, ticket: int, answered: bool | None) -> None:
        """How an admitted question ended. None: nobody waited for its end, so it says nothing about the pool."""
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
        # Only a failure opens: an old one that leaves the window must not turn a good answer into an outage.
        if not answered and count >= self._config.min_count and self._failed >= self._config.failure_frac * count:
            self._open()

    def _open(self) -> None:
        self._turn()
        self._open_until, self._half_open = self._clock() + self._config.cooldown_s, False
        self.openings += 1

    def _turn(self) -> None:
        """A new state starts with nothing known."""
        self._era += 1
        self._ended.clear()
        self._failed = 0
