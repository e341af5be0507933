"""Whether a process of this machine still runs: what a lock, a status and a left-over file depend on."""

from __future__ import annotations

import os
from pathlib import Path


def started(pid: int) -> str | None:
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
    return started(pid) is not None
