"""`hamr scale`: changes the number of replicas of a running job's pools."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from hamr.errors import BadInput, HamrError
from hamr.telemetry.control_requests import ControlRequests
from hamr.telemetry.live import LiveStatus, find_run

HELP = "resizes the pools of a running job without stopping it"

ANSWER_S = 1800.0
"""Longest wait for a run's answer in seconds: new engines may have to load, and removed replicas finish their
requests."""
FIRST_SIGN_S = 5.0
"""Time in seconds that a run that was just started may take to write its first status."""


def main(args: list[str]) -> int:
    """Run `hamr scale <run> judge=4 reranker=8`, where <run> is a run folder or its name under `runs/`.

    A fixed pool gets the number of replicas; an autoscaled pool gets it as its minimum (within the bounds of
    `pools.<pool>.autoscaling`; load may add more). New replicas start next to the others; a replica that is removed
    finishes its requests first. Other pools and the remaining replicas are not affected. The change is applied as a
    whole or not at all: an invalid number is reported in one line and the run is unchanged.
    """
    run, wanted = _read(args)
    folder = find_run(run)
    _check_alive(folder, run)
    print(f"requesting from {folder}: {', '.join(f'{name}={count}' for name, count in wanted.items())}", flush=True)
    answer = ControlRequests(folder).ask({"scale": wanted}, timeout_s=ANSWER_S, alive=lambda: _alive(folder))
    if "bad_input" in answer:
        raise BadInput(*answer["bad_input"])
    if "failed" in answer:
        raise HamrError(answer["failed"])
    for name, (before, after) in answer["scaled"].items():
        print(f"{name}: {before} -> {after} replicas" if before != after else f"{name}: {after} replicas, unchanged")
    return 0


def _read(args: Sequence[str]) -> tuple[str, dict[str, int]]:
    runs = [arg for arg in args if "=" not in arg]
    if len(runs) != 1:
        raise BadInput("run", " ".join(runs) or None, "name one run: hamr scale <run> judge=4")
    wanted = {}
    for arg in args:
        name, equals, count = arg.partition("=")
        if not equals:
            continue
        if not count.removeprefix("-").isdecimal():
            raise BadInput(f"scale {name}", count, f"is not a whole number of replicas; write {name}=4")
        wanted[name] = int(count)
    if not wanted:
        raise BadInput("scale", None, f"name a pool and its number of replicas: hamr scale {runs[0]} judge=4")
    return runs[0], wanted


def _alive(folder: Path) -> bool:
    status = LiveStatus.read(folder)
    return status is not None and status.alive()


def _check_alive(folder: Path, run: str) -> None:
    deadline = time.monotonic() + FIRST_SIGN_S
    while not _alive(folder):
        if time.monotonic() > deadline:
            status = LiveStatus.read(folder)
            how = f" ({status.state})" if status else ""
            raise BadInput(
                "run", run, f"is not running{how}, so it has no pools to resize; `hamr status {run}` says more"
            )
        time.sleep(0.2)
