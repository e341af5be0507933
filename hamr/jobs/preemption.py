"""SIGTERM as pre-emption: the machine is taken away, and the run is to go on elsewhere.

Clusters, batch systems and spot machines say so by SIGTERM, with SIGKILL some 30 s behind; a person stops a run by
Ctrl-C. So SIGTERM ends a training run as soon as nothing is lost by it, with exit code 0 and a line that says how to go
on. What can be done again (a batch half collected, an evaluation) is dropped; what cannot (an optimiser step that is
under way) is waited for and kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, TypeVar

Result = TypeVar("Result")


class Preemption:
    """Whether a run was told to end. While it is `patient`, it sees to that itself; otherwise its task is cancelled."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.patient = False

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While the body runs, in the task that runs it, SIGTERM asks. A second one ends the process's work at once."""
        if threading.current_thread() is not threading.main_thread():  # Python allows handlers nowhere else
            yield
            return
        loop, task = asyncio.get_running_loop(), asyncio.current_task()

        def ask() -> None:
            self.asked.set()
            if task is not None and not self.patient:
                task.cancel()

        def note(signum: int, frame: FrameType | None) -> None:
            if self.asked.is_set():
                raise SystemExit(128 + signum)
            loop.call_soon_threadsafe(ask)

        before = signal.signal(signal.SIGTERM, note)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, before)

    @contextlib.contextmanager
    def patiently(self) -> Iterator[None]:
        """While the body runs, it looks for itself whether it was asked to end."""
        self.patient = True
        try:
            yield
        finally:
            self.patient = False

    async def unless_asked(
        self, work: Coroutine[Any, Any, Result], *, may_drop: Callable[[], bool] = lambda: True
    ) -> Result | None:
        """The result of `work`. Asked to end, it is cancelled and None, if at that moment it `may_drop`; else it is
        waited for."""
        task, asked = asyncio.ensure_future(work), asyncio.ensure_future(self.asked.wait())
        try:
            await asyncio.wait((task, asked), return_when=asyncio.FIRST_COMPLETED)
            return None if not task.done() and may_drop() else await task
        finally:
            asked.cancel()
            task.cancel()
            await asyncio.gather(task, asked, return_exceptions=True)
