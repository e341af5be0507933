"""Kill processes without a warning, like the loss of a machine."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence

import psutil

from hamr.security.processes import alive


def kill_family(process: subprocess.Popen[bytes]) -> None:
    """Kill the process, then all its descendants, without any clean-up."""
    if process.poll() is not None:
        return
    family = children(psutil.Process(process.pid))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kill_all(family)


def children(process: psutil.Process) -> list[psutil.Process]:
    """Return all descendants of the process."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def kill_all(family: Iterable[psutil.Process]) -> None:
    """Kill the processes and return after they have exited."""
    there = list(family)
    for process in there:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    still_there(there, 30)


def still_there(family: Sequence[psutil.Process], timeout_s: float) -> list[int]:
    """Return the processes that have not exited after at most `timeout_s`. psutil's own wait would block on a zombie
    that has no reaper.
    """
    deadline = time.monotonic() + timeout_s
    while (found := [process.pid for process in family if alive(process.pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
