"""SIGTERM and Ctrl-C to a run: it ends within seconds and can be resumed.

Clusters, batch systems and spot machines send SIGTERM, with SIGKILL some 10 to 30 s behind; a person presses Ctrl-C.
Both mean the same here, except for the exit code: 0 after SIGTERM, since the run is to be resumed elsewhere, and 130
after Ctrl-C.

What can be done again (a half-collected batch, an evaluation) is dropped at once. An optimiser step that is running
gets `experiment.checkpoint.grace_s` seconds to end and to be saved. After that it is dropped and the newest checkpoint
counts: weights are changed in place, so in the middle of a step the state after the last finished one exists nowhere.
To keep it would take a second copy of weights and optimiser before every step, and a step cannot be abandoned half-way,
because its ranks wait for each other. So the wait is bounded, the user chooses the bound, and the message names the
step from which the run resumes. At most `experiment.checkpoint.every` - 1 finished steps are then taken again, with the
same prompts, seeds and results, because all of these depend on the checkpoint alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from hamr import signals
from hamr.errors import Interrupted, Preempted

Result = TypeVar("Result")

STOP_S = 4.0
"""Time for the end of all processes after the grace period, before they are ended by force."""


class Preemption:
    """Whether a run was told to end. While it is `patient`, it sees to that itself within `grace_s` seconds; otherwise
    its task is cancelled at once."""

    def __init__(self, grace_s: float = 4.0) -> None:
        self.asked = asyncio.Event()
        self.patient = False
        self.grace_s = grace_s

    @contextlib.contextmanager
    def watching(self, note: Callable[[str], None] = lambda line: None) -> Iterator[None]:
        """While the body runs, in the task that runs it, a signal asks. A second one ends the process at once."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "called in a task"

        def ask() -> None:
            self.asked.set()
            if self.patient:
                note(f"stopping: a running step has {self.grace_s:g} s to end; a second signal ends the run at once")
                loop.call_later(self.grace_s, task.cancel)
            else:
                task.cancel()

        def act(signum: int) -> None:
            loop.call_soon_threadsafe(ask)

        with signals.handle_signals(act, limit_s=max(signals.LIMIT_S, self.grace_s + STOP_S)):
            yield

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
        waited for. Work that has not begun when the run is asked to end never begins."""
        if self.asked.is_set():
            work.close()
            return None
        task, asked = asyncio.ensure_future(work), asyncio.ensure_future(self.asked.wait())
        try:
            await asyncio.wait((task, asked), return_when=asyncio.FIRST_COMPLETED)
            return None if not task.done() and may_drop() else await task
        finally:
            asked.cancel()
            task.cancel()
            await asyncio.gather(task, asked, return_exceptions=True)


def stop_error(message: str, signum: int | None = None) -> Preempted:
    """Return the error that ends a run after a signal: `stopped by <signal><message>`.

    Args:
        message: What is kept and how to resume, with its leading punctuation.
        signum: The signal; by default the one that was received.
    """
    if (signum or signals.pending_signal()) == signal.SIGINT:
        return Interrupted(f"stopped by Ctrl-C{message}")
    return Preempted(f"stopped by SIGTERM{message}")
