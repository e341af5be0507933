"""Preemption by SIGTERM and Ctrl-C: the run ends within seconds and can be resumed.

Clusters, batch systems and spot machines send SIGTERM, followed by SIGKILL after about 10 to 30 s; a user presses
Ctrl-C. Both are handled in the same way, except for the exit code: 0 after SIGTERM, since the run is to be resumed
elsewhere, and 130 after Ctrl-C.

Work that can be repeated (a half-collected batch, an evaluation) is dropped immediately. A running optimiser step gets
`experiment.checkpoint.grace_s` seconds to finish and to be saved. After that it is dropped and the newest checkpoint
counts. Weights are changed in place, so during a step the state after the last finished step exists nowhere. To keep
it, a second copy of weights and optimiser would be needed before every step. A step cannot be abandoned half-way,
because its ranks wait for each other. The wait is therefore bounded, the user sets the bound, and the message names the
step from which the run resumes. At most `experiment.checkpoint.every` - 1 finished steps are then repeated. They use
the same prompts and seeds, which depend on the checkpoint alone, and in synchronous training they give the same
results. Groups in flight are sampled again under the same keys, by the weights of the checkpoint.
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
"""Time in seconds for all processes to end after the grace period, before they are killed."""


class Preemption:
    """Stop request of a run. While it is `patient`, the run handles the request itself within `grace_s` seconds;
    otherwise its task is cancelled immediately."""

    def __init__(self, grace_s: float = 4.0) -> None:
        self.asked = asyncio.Event()
        self.patient = False
        self.grace_s = grace_s
        self._grace: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def watching(self, note: Callable[[str], None] = lambda line: None) -> Iterator[None]:
        """Handle signals while the body runs, in the task that runs it. A second signal ends the process
        immediately."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "called in a task"

        def ask() -> None:
            self.asked.set()
            if self.patient:
                note(f"stopping: a running step has {self.grace_s:g} s to finish; a second signal kills the run")
                self._grace = loop.call_later(self.grace_s, task.cancel)
            else:
                task.cancel()

        def act(signum: int) -> None:
            loop.call_soon_threadsafe(ask)

        with signals.handle_signals(act, limit_s=max(signals.LIMIT_S, self.grace_s + STOP_S)):
            yield

    @contextlib.contextmanager
    def patiently(self) -> Iterator[None]:
        """Let the body poll for a stop request instead of being cancelled, at most `grace_s` seconds.

        The shutdown that follows the body is not cut off.
        """
        self.patient = True
        try:
            yield
        finally:
            self.patient = False
            if self._grace is not None:
                self._grace.cancel()

    async def unless_asked(
        self, work: Coroutine[Any, Any, Result], *, may_drop: Callable[[], bool] = lambda: True
    ) -> Result | None:
        """Return the result of `work`, or None if a stop request cancelled it.

        Work is cancelled only if `may_drop` is true at that moment; otherwise it is awaited. Work that has not started
        when the request arrives never starts.
        """
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
        message: The saved state and how to resume, with its leading punctuation.
        signum: The signal; by default the one that was received.
    """
    if (signum or signals.pending_signal()) == signal.SIGINT:
        return Interrupted(f"stopped by Ctrl-C{message}")
    return Preempted(f"stopped by SIGTERM{message}")
