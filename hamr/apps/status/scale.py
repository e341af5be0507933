"""`hamr scale`: changes the number of replicas of a running job's pools."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from hamr.errors import BadInput, HamrError
from hamr.telemetry.control_requests import ControlRequests
from hamr.telemetry.live import LiveStatus, find_run

ANSWER_S = 1800.0
"""Longest wait for a run's answer in seconds: new engines may have to load, and removed replicas finish their
requests."""
FIRST_SIGN_S = 5.0
"""Time in seconds that a run that was just started may take to write its first status."""


def scale(run: str, wanted: Mapping[str, int]) -> int:
    """Ask a run for other numbers of replicas, wait for its answer and print it."""
    folder = find_run(run)
    _check_alive(folder, run)
    print(f"requesting from {folder}: {', '.join(f'{name}={count}' for name, count in wanted.items())}", flush=True)
    alive = partial(LiveStatus.is_alive, folder)
    answer = ControlRequests(folder).ask({"scale": dict(wanted)}, timeout_s=ANSWER_S, alive=alive)
    if "bad_input" in answer:
        raise BadInput(*answer["bad_input"])
    if "failed" in answer:
        raise HamrError(answer["failed"])
    for name, (before, after) in answer["scaled"].items():
        print(f"{name}: {before} -> {after} replicas" if before != after else f"{name}: {after} replicas, unchanged")
    return 0


def _check_alive(folder: Path, run: str) -> None:
    deadline = time.monotonic() + FIRST_SIGN_S
    while not LiveStatus.is_alive(folder):
        if time.monotonic() > deadline:
            status = LiveStatus.read(folder)
            how = f" ({status.state})" if status else ""
            raise BadInput(
                "run", run, f"is not running{how}, so it has no pools to resize; `hamr status {run}` says more"
            )
        time.sleep(0.2)
