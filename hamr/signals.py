"""Signal handling for all commands: the first SIGTERM or Ctrl-C shuts down gracefully, the second immediately.

The first signal runs an action in the main thread. The default action raises, so that `finally` blocks run. A timer
bounds the graceful shutdown: a `finally` that waits for a dead engine, or library code that swallows the exception,
cannot keep the process alive. If Python itself swallows the exception (in callbacks, e.g. of a fork), it is raised
again. A second signal, or the timer, kills every descendant of this process and exits.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn, TypeVar

from hamr.security.processes import kill_descendants

T = TypeVar("T")
SignalAction = Callable[[int], None]

LIMIT_S = 8.0
"""Time limit of the graceful shutdown. With the kill that follows it, a process ends within 10 seconds."""
AGAIN_S = 0.05
"""Pause before a signal is delivered again."""
FORWARDED = "HAMR_SIGNALS_FORWARDED"
"""Set in the environment of a process whose parent forwards signals to it. It receives a signal twice if the sender
signals all processes of a service or job."""
DUPLICATE_S = 1.0
"""A process with `FORWARDED` ignores the same signal again within this time."""

SIGNALS = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}
_SHOW_CURSOR = "\033[?25h"


@dataclass
class _State:
    received: int | None = None
    received_at: float = 0.0
    again: bool = False
    """True if the next signal is a repeated delivery of the first one."""
    depth: int = 0
    timer: threading.Timer | None = None
    clean_up: tuple[Callable[[], object], ...] = ()
    advice: str = ""
    errors: int = 2
    """File descriptor of the standard error that the user reads."""


_state = _State()


def pending_signal() -> int | None:
    """Return the signal that is ending this process, or None."""
    return _state.received


def raise_exit(signum: int) -> None:
    """Default action.

    Raises:
        KeyboardInterrupt: `signum` is SIGINT.
        SystemExit: `signum` is SIGTERM, with 143.
    """
    if signum == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + signum)


def signal_of(error: BaseException) -> int | None:
    """Return the signal that `raise_exit` turned into `error`, or None for any other exception."""
    if isinstance(error, KeyboardInterrupt):
        return signal.SIGINT
    if isinstance(error, SystemExit) and error.code == 128 + signal.SIGTERM:
        return signal.SIGTERM
    return None


@contextlib.contextmanager
def handle_signals(
    action: SignalAction = raise_exit, *, limit_s: float | None = LIMIT_S, clock: Callable[[], float] = time.monotonic
) -> Iterator[None]:
    """Handle SIGTERM and SIGINT by `action` while the body runs. Inner calls replace the action of outer ones.

    Outside the main thread this does nothing, because Python allows handlers only there.

    Args:
        action: Receives the first signal. It may raise.
        limit_s: Seconds from the first signal until the process is killed; None for no limit.
        clock: Returns the time in seconds.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(signum: int, frame: FrameType | None) -> None:
        now = clock()
        if _state.received is not None and not _state.again:
            is_same = signum == _state.received and now - _state.received_at < DUPLICATE_S
            if is_same and FORWARDED in os.environ:
                return
            exit_now("by a second signal")
        _state.received, _state.received_at, _state.again = signum, now, False
        if limit_s is not None and _state.timer is None:
            reason = f"because the graceful shutdown took longer than {limit_s:g} s"
            _state.timer = threading.Timer(limit_s, exit_now, (reason,))
            _state.timer.daemon = True
            _state.timer.start()
        action(signum)

    before = {signum: signal.signal(signum, handle) for signum in SIGNALS}
    hook, sys.unraisablehook = sys.unraisablehook, _raise_again
    _state.depth += 1
    try:
        yield
    finally:
        sys.unraisablehook = hook
        for signum, handler in before.items():
            signal.signal(signum, handler)
        _state.depth -= 1
        if not _state.depth:
            if _state.timer is not None:
                _state.timer.cancel()
            _state.received, _state.timer, _state.again, _state.advice = None, None, False, ""


def _raise_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Deliver the signal again if Python could not raise the exception of its action."""
    error, main_thread = unraisable.exc_value, threading.main_thread().ident
    if _state.received is None or error is None or signal_of(error) is None or main_thread is None:
        sys.__unraisablehook__(unraisable)
        return
    _state.again = True
    threading.Timer(AGAIN_S, signal.pthread_kill, (main_thread, _state.received)).start()


def is_handled() -> bool:
    """Return whether `handle_signals` is active in this process."""
    return _state.depth > 0


@contextlib.contextmanager
def cleaned_up(callback: Callable[[], object]) -> Iterator[None]:
    """Register `callback` for a forced exit while the body runs. It runs after all descendants were killed."""
    before = _state.clean_up
    _state.clean_up = (callback, *before)
    try:
        yield
    finally:
        _state.clean_up = before


def advise(text: str) -> None:
    """Set the hint that a forced exit prints, e.g. how to resume the run."""
    _state.advice = text


def exit_now(reason: str) -> NoReturn:
    """Kill all descendants and end the process. `finally` blocks do not run and files on disk are left as they are."""
    signum = _state.received or signal.SIGTERM
    with contextlib.suppress(Exception):
        silence_native_code()
    with contextlib.suppress(Exception):
        kill_descendants()
    for callback in _state.clean_up:
        with contextlib.suppress(Exception):
            callback()
    line = f"hamr: {SIGNALS[signal.Signals(signum)]} ended the process {reason}"
    line += f"; {_state.advice}" if _state.advice else ""
    # Do not use sys.stderr, since another thread may hold its lock. A live display has hidden the cursor.
    with contextlib.suppress(OSError):
        os.write(_state.errors, (f"{_SHOW_CURSOR if os.isatty(_state.errors) else ''}{line}\n").encode())
    os._exit(128 + signum)


def silence_native_code() -> None:
    """Discard what native libraries write to standard error until the process ends. Python's own output still appears.

    Ray's core logs an error for every call to a killed actor. Call this only in a process that a signal is ending.
    """
    if _state.errors != 2:
        return
    _state.errors = os.dup(2)
    sys.stderr = os.fdopen(_state.errors, "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    os.close(nowhere)


def leave(code: int) -> NoReturn:
    """End the process after a graceful shutdown, without waiting for threads.

    A thread that waits for a killed process would block the interpreter's own exit.
    """
    with contextlib.suppress(Exception):
        kill_descendants()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


class _Executor(ThreadPoolExecutor):
    """Thread pool whose shutdown does not wait for its threads once a signal has arrived."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=wait and pending_signal() is None, cancel_futures=cancel_futures)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` as `asyncio.run` does, but do not wait for the event loop's threads after a signal."""

    async def with_executor() -> T:
        asyncio.get_running_loop().set_default_executor(_Executor(thread_name_prefix="asyncio"))
        return await main

    return asyncio.run(with_executor())
