"""An event loop whose clock is simulated: it jumps to the next timer instead of waiting for it.

Sleeps then take no time and end in their order, so that minutes of scorers' latencies are computed in seconds, the same
on a busy machine as on a quiet one. Python's own time does not count; `router_load.py` measures that.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jump(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """Returns immediately, as if the time to wait had passed, unless something is to be read."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("nothing is left to wait for: a deadlock")
        if not ready and timeout:
            self.now += timeout
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        return self._jump.now


def run(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run on such a loop; its `time()` starts at 0."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main)
