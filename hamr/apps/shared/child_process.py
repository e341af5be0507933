"""Child processes: one for work on a model, whose memory is free again when the work ends, and other commands."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from typing import Any

from hamr import signals
from hamr.errors import HamrError
from hamr.models.cpu_env import ALLOCATOR_ENV, WAITING_ENV

PR_SET_PDEATHSIG = 1
CHILD_ENV = {
    **ALLOCATOR_ENV,
    **WAITING_ENV,
    "DS_ACCELERATOR": "cpu",
    "PYTHONWARNINGS": "ignore::UserWarning:multiprocessing.resource_tracker",
}
"""Environment of the process: glibc reads its settings when a process starts, libraries do not look for a GPU, and a
killed process gives no warning, since its resource tracker removes what it leaves."""

_parent: Connection | None = None
"""In a child process, the connection to its parent, if that receives values."""


@contextlib.contextmanager
def child_process(killed: str, receive: Callable[[Any], None] | None = None) -> Iterator[Callable[..., Any]]:
    """Start a fresh process: what it is called with runs there, and its result (or what it raised) comes back.

    `receive` is called here, on a thread, with each value that the process passes to `send_to_parent`.

    Raises:
        HamrError: the process was killed; the message is `killed`.
    """
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(_listening(context, receive)) if receive else None
        pool = stack.enter_context(
            concurrent.futures.ProcessPoolExecutor(1, mp_context=context, initializer=_start, initargs=(writer,))
        )
        try:
            yield lambda function, *args: pool.submit(function, *args).result()
        except concurrent.futures.process.BrokenProcessPool as error:
            raise HamrError(f"{killed} ({error})") from error
        except (KeyboardInterrupt, SystemExit):
            for child in multiprocessing.active_children():
                child.kill()
            raise


def send_to_parent(value: object) -> None:
    """Pass a value to the `receive` of the parent process. It is dropped if there is none."""
    if _parent is not None:
        _parent.send(value)


@contextlib.contextmanager
def _listening(context: SpawnContext, receive: Callable[[Any], None]) -> Iterator[Connection]:
    """Return a connection whose values go to `receive`. The listener ends with the last process that may write, killed
    or not."""
    reader, writer = context.Pipe(duplex=False)

    def listen() -> None:
        with reader, contextlib.suppress(EOFError, OSError):
            while True:
                receive(reader.recv())

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield writer
    finally:
        writer.close()
        listener.join()


def _start(parent: Connection | None) -> None:
    """Prepare this process, which a killed hamr does not leave behind."""
    global _parent
    _parent = parent
    end_with_parent(signal.SIGKILL)
    starter = multiprocessing.parent_process()
    if starter is not None and not starter.is_alive():  # it died before the line above
        os._exit(1)


def end_with_parent(signum: int = signal.SIGTERM) -> None:
    """Have the kernel send this process a signal when its parent ends (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum)


def start_hamr(words: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start `hamr <words>` with further variables, in a process that ends with this one.

    It has its own process group, so that it receives Ctrl-C once, forwarded from here. A second signal would kill it
    before it has saved its last step.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "hamr", *words],
        env={**os.environ, signals.FORWARDED: "1", **env},
        preexec_fn=end_with_parent,
        process_group=0,
    )


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for processes that start inside, and put the old ones back."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
