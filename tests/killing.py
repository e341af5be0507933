"""Kills without a warning, as a lost machine does."""

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
    """The process at once, then all that it had started: nobody tidies up."""
    if process.poll() is not None:
        return
    family = children(psutil.Process(process.pid))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kill_all(family)


def children(process: psutil.Process) -> list[psutil.Process]:
    """All that it has started, and what they have."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


def kill_all(family: Iterable[psutil.Process]) -> None:
    """All at once; returns when they are gone."""
    there = list(family)
    for process in there:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    still_there(there, 30)


def still_there(family: Sequence[psutil.Process], timeout_s: float) -> list[int]:
    """Who has not ended after at most `timeout_s`. psutil's own wait would stay for a zombie that nobody reaps."""
    deadline = time.monotonic() + timeout_s
    while (found := [process.pid for process in family if alive(process.pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return found
