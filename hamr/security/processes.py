"""Processes of this machine: whether one still runs, and the end of all that descend from this one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

KILLED_S = 1.0
"""Longest wait for killed processes to end. One that the kernel holds, e.g. in a write to a dead disk, ends later."""


def start_time(pid: int) -> str | None:
    """When the process started, in clock ticks since boot, or None where it has ended.

    Told apart by this, a recycled pid does not pass for the one that was meant. A zombie has ended: in a container
    whose first process reaps nobody it is listed for ever. Where there is no /proc, the empty string: the pid alone
    has to do.
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
    except PermissionError:  # it exists, and is somebody else's
        pass
    return ""


def alive(pid: int) -> bool:
    return start_time(pid) is not None


def kill_descendants() -> None:
    """Kill the children of this process and theirs by SIGKILL, and wait until they have ended.

    Python's resource trackers stay. They end with the processes that they watch, and first remove what these have left
    in shared memory.
    """
    import psutil

    me = psutil.Process()
    for _ in range(3):  # a child that was just being started is found by the next look
        found = [process for process in me.children(recursive=True) if not _is_resource_tracker(process)]
        if not found:
            return
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(found, timeout=KILLED_S)


def _is_resource_tracker(process: Any) -> bool:
    import psutil

    with contextlib.suppress(psutil.Error):
        return any("resource_tracker" in part for part in process.cmdline())
    return False
