"""`hamr stop`: ends a running job or pipeline as SIGTERM does."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hamr.apps.pipeline.log import is_pipeline, pipeline_owner
from hamr.config.yaml_files import read_config
from hamr.errors import BadInput, HamrError
from hamr.security.processes import has_ended, is_visible
from hamr.telemetry.control_requests import ControlRequests
from hamr.telemetry.live import RUNS, LiveStatus, find_run
from hamr.telemetry.run_folder import owner_of

ANSWER_S = 30.0
"""Longest wait in seconds for the answer of a run on another machine."""
END_S = 60.0
"""Longest wait in seconds for the end of the run, after the time that a running step has."""


def stop(run: str) -> int:
    """Ask a run or a pipeline to stop, wait until it has ended and print what is kept.

    A run on this machine gets the signal itself, one on another machine or in another container a control request in
    its folder.
    """
    for path in (Path(run), Path(RUNS) / run):
        if is_pipeline(path):
            return _stop_pipeline(path.absolute(), run)
    folder = find_run(run)
    owner = _owner(folder)
    if owner is None or not _is_running(folder):
        status = LiveStatus.read(folder)
        how = f" ({status.state})" if status else ""
        raise BadInput("run", run, f"is not running{how}, so there is nothing to stop")
    print(f"stopping {folder} (process {owner['pid']} on {owner['host']})", flush=True)
    delivered = False
    if is_visible(owner):
        with contextlib.suppress(ProcessLookupError, PermissionError):  # ended just now, or another user's
            os.kill(owner["pid"], signal.SIGTERM)
            delivered = True
    if not delivered and _is_running(folder):
        ControlRequests(folder).ask({"stop": True}, timeout_s=ANSWER_S, alive=lambda: _is_running(folder))
    _wait_for_end(lambda: _is_running(folder), END_S + _grace_s(folder), "run was asked to stop")
    status = LiveStatus.read(folder)
    print(f"{status.state}: {status.detail}" if status and status.detail else "the run has ended")
    return 0


def _stop_pipeline(folder: Path, given: str) -> int:
    """Stop a pipeline, or its current run where another machine runs it: a run without a summary ends the pipeline."""
    owner = pipeline_owner(folder)
    if owner is None:
        raise BadInput("run", given, "is a pipeline that is not running, so there is nothing to stop")
    runs = [path.parent for path in folder.glob("*/config.yaml") if _is_running(path.parent)]
    if not is_visible(owner):
        if not runs:
            raise BadInput("run", given, f"runs on {owner['host']}, in a stage that takes no request; stop it there")
        return stop(str(runs[0]))
    print(f"stopping {folder} (process {owner['pid']} on {owner['host']})", flush=True)
    try:
        os.kill(owner["pid"], signal.SIGTERM)
    except ProcessLookupError:
        pass  # ended just now
    except PermissionError:
        raise BadInput("run", given, f"is another user's process {owner['pid']}; stop it as that user") from None
    limit_s = END_S + max((_grace_s(run) for run in runs), default=0.0)
    _wait_for_end(lambda: pipeline_owner(folder) is not None, limit_s, "pipeline was asked to stop")
    print(f"the pipeline has ended; continue with: hamr train resume={folder}")
    return 0


def _wait_for_end(is_running: Callable[[], bool], limit_s: float, what: str) -> None:
    """Raise HamrError if it still runs after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while is_running():
        if time.monotonic() > deadline:
            raise HamrError(f"the {what} and still runs after {limit_s:g} s")
        time.sleep(0.1)


def _is_running(folder: Path) -> bool:
    """Return whether the run's process is there. One elsewhere counts while it writes its status."""
    owner, status = owner_of(folder), LiveStatus.read(folder)
    if owner is None:
        return status is not None and status.state == "starting" and status.alive()
    if has_ended(owner):
        return False
    return is_visible(owner) or (status is not None and status.alive())


def _owner(folder: Path) -> Mapping[str, Any] | None:
    """Return the process of a run. One that starts does not hold the folder yet, but writes its status."""
    if owner := owner_of(folder):
        return owner
    status = LiveStatus.read(folder)
    return {"pid": status.pid, "host": status.host, "pids": status.pids} if status else None


def _grace_s(folder: Path) -> float:
    path = folder / "config.yaml"
    config = read_config(path) if path.exists() else {}
    return config.get("experiment", {}).get("checkpoint", {}).get("grace_s", 0.0)
