"""Kills without a warning, as a lost machine does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable

import psutil


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
    psutil.wait_procs(there, timeout=30)
