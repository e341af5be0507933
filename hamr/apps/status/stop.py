"""`hamr stop`: ends a running job as SIGTERM does."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hamr.errors import BadInput, HamrError
from hamr.security.processes import has_ended
from hamr.telemetry.control_requests import ControlRequests
from hamr.telemetry.live import LiveStatus, find_run
from hamr.telemetry.run_folder import owner_of, read_config

ANSWER_S = 30.0
"""Longest wait in seconds for the answer of a run on another machine."""
END_S = 60.0
"""Longest wait in seconds for the end of the run, after the time that a running step has."""


def stop(run: str) -> int:
    """Ask a run to stop, wait until it has ended and print what is kept.

    A run on this machine gets the signal itself, one on another machine a control request in its folder.
    """
    folder = find_run(run)
    owner = _owner(folder)
    if owner is None or not _is_running(folder):
        status = LiveStatus.read(folder)
        how = f" ({status.state})" if status else ""
        raise BadInput("run", run, f"is not running{how}, so there is nothing to stop")
    print(f"stopping {folder} (process {owner['pid']} on {owner['host']})", flush=True)
    delivered = False
    if owner["host"] == socket.gethostname():
        with contextlib.suppress(ProcessLookupError, PermissionError):  # ended just now, or another user's
            os.kill(owner["pid"], signal.SIGTERM)
            delivered = True
    if not delivered and _is_running(folder):
        ControlRequests(folder).ask({"stop": True}, timeout_s=ANSWER_S, alive=lambda: _is_running(folder))
    limit_s = END_S + _grace_s(folder)
    deadline = time.monotonic() + limit_s
    while _is_running(folder):
        if time.monotonic() > deadline:
            raise HamrError(f"the run was asked to stop and still runs after {limit_s:g} s; see `hamr status {run}`")
        time.sleep(0.1)
    status = LiveStatus.read(folder)
    print(f"{status.state}: {status.detail}" if status and status.detail else "the run has ended")
    return 0


def _is_running(folder: Path) -> bool:
    """Return whether the run's process is there. That of another machine counts while it writes its status."""
    owner, status = owner_of(folder), LiveStatus.read(folder)
    if owner is None:
        return status is not None and status.state == "starting" and status.alive()
    if has_ended(owner):
        return False
    return owner["host"] == socket.gethostname() or (status is not None and status.alive())


def _owner(folder: Path) -> Mapping[str, Any] | None:
    """Return the process of a run. One that starts does not hold the folder yet, but writes its status."""
    if owner := owner_of(folder):
        return owner
    status = LiveStatus.read(folder)
    return {"pid": status.pid, "host": status.host} if status else None


def _grace_s(folder: Path) -> float:
    path = folder / "config.yaml"
    config = read_config(path) if path.exists() else {}
    return config.get("experiment", {}).get("checkpoint", {}).get("grace_s", 0.0)
