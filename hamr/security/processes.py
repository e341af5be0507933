"""Processes of this machine: check whether one still runs, and kill all descendants of this one."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psutil

KILLED_S = 1.0
"""Longest wait for killed processes to end. One that is blocked in the kernel, e.g. in a write to a dead disk, ends
later."""


def start_time(pid: int) -> str | None:
    """Return the start time of a process, in clock ticks since boot, or None if it has ended.

    The start time distinguishes a process from a later one with the same pid. A zombie counts as ended: in a container
    whose first process does not reap children, it stays listed indefinitely. Without /proc the result is the empty
    string, and only the pid can be compared.
    """
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return None if state in "ZX" else rest[18]
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self").exists():
            return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:  # it exists, and belongs to another user
        pass
    return ""


def alive(pid: int) -> bool:
    return start_time(pid) is not None


def identity(pid: int | None = None) -> dict[str, Any]:
    """Return the identity of a process of this machine, this one by default, for a file that outlives it."""
    number = os.getpid() if pid is None else pid
    return {"host": socket.gethostname(), "pids": pid_namespace(), "pid": number, "started": start_time(number)}


def pid_namespace() -> str:
    """Return the name of the set of processes that this one sees. A container has its own; the host's name may be the
    same."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def is_visible(owner: Mapping[str, Any]) -> bool:
    """Return whether the process of an `identity` is of this host and container, so that its pid means that process."""
    return owner["host"] == socket.gethostname() and owner.get("pids", pid_namespace()) == pid_namespace()


def has_ended(owner: Mapping[str, Any]) -> bool:
    """Return whether the process of an `identity` has ended; False for one of another host or container, which cannot
    be seen."""
    if not is_visible(owner):
        return False
    return owner["started"] is None or start_time(owner["pid"]) != owner["started"]


def kill_descendants() -> None:
    """Kill the descendants of this process by SIGKILL and wait until they have ended.

    Python's resource trackers stay. They end with the processes that they watch, after removing the shared memory that
    these have left.
    """
    import psutil

    for _ in range(3):  # the next iteration finds a child that was just being started
        if not (found := descendants(psutil.Process())):
            return
        kill(found)


def kill_session(leader: int) -> None:
    """Kill the processes of the session that process `leader` began, and wait until they have ended.

    Those in process groups of their own (as under `timeout`) and those whose parents have ended are killed too. A child
    of this process is left to be reaped.
    """
    import psutil

    until = time.monotonic() + KILLED_S
    while found := [pid for pid in psutil.pids() if _session(pid) == leader and alive(pid)]:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > until:
            return
        time.sleep(0.01)


def _session(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return None


def descendants(process: psutil.Process) -> list[psutil.Process]:
    """Return the running descendants of a process without Python's resource trackers."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return [child for child in process.children(recursive=True) if not _is_resource_tracker(child)]
    return []


def kill(found: Sequence[psutil.Process]) -> None:
    """Kill processes by SIGKILL and wait until they have ended, at most `KILLED_S`."""
    import psutil

    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(found, timeout=KILLED_S)


def _is_resource_tracker(process: psutil.Process) -> bool:
    import psutil

    with contextlib.suppress(psutil.Error):
        return any("resource_tracker" in part for part in process.cmdline())
    return False
