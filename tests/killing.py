"""Kills without a warning, as a lost machine does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

import psutil


def kill_family(process: subprocess.Popen[bytes]) -> None:
    """The process at once, then all that it had started: nobody tidies up."""
    if process.poll() is not None:
        return
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    for child in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(family, timeout=30)
