"""A process of its own for work on a model, whose memory is free again when the work ends."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hamr.backends.cpu_env import ALLOCATOR_ENV, WAITING_ENV
from hamr.errors import HamrError

PR_SET_PDEATHSIG = 1
CHILD_ENV = {
    **ALLOCATOR_ENV,
    **WAITING_ENV,
    "DS_ACCELERATOR": "cpu",
    "PYTHONWARNINGS": "ignore::UserWarning:multiprocessing.resource_tracker",
}
"""Of the process: glibc reads its settings when a process starts, what looks for a GPU is told, and a killed process
has nothing to warn of, since its resource tracker removes what it leaves."""


@contextlib.contextmanager
def child_process(killed: str) -> Iterator[Callable[..., Any]]:
    """Start a fresh process: what it is called with runs there, and its result (or what it raised) comes back.

    Raises:
        HamrError: the process was killed; the message is `killed`.
    """
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context, initializer=_die_with_parent) as pool:
        try:
            yield lambda function, *args: pool.submit(function, *args).result()
        except concurrent.futures.process.BrokenProcessPool as error:
            raise HamrError(f"{killed} ({error})") from error
        except (KeyboardInterrupt, SystemExit):
            for child in multiprocessing.active_children():
                child.kill()
            raise


def _die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends (Linux), so that a killed hamr leaves none behind."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


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
