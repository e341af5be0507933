"""`status.json` of a run folder: the live status of a run, readable without Ray."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from hamr.config.overrides import nearest_first
from hamr.errors import RunFolderError
from hamr.security.processes import alive, is_visible, pid_namespace
from hamr.security.redaction import blot

STALE_S = 30.0
"""A run counts as ended after this time without an update."""
RUNS = "runs"

RunState = Literal["starting", "running", "finished", "preempted", "failed"]
OVER = ("finished", "preempted", "failed")


@dataclass(frozen=True, kw_only=True)
class LiveStatus:
    """Live status. `time` and `started` are seconds since the epoch.

    `hamr.apps.shared.live_control` publishes it and defines `pools`.
    """

    run: str
    state: RunState
    phase: str
    started: float
    time: float
    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)
    pids: str = field(default_factory=pid_namespace)
    pools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    detail: str = ""

    def write(self, folder: Path) -> None:
        # Rewritten every few seconds without fsync: readers see a whole file, but a crash of the machine may lose it.
        aside = folder / ".status.json.tmp"
        aside.write_text(blot(json.dumps(vars(self), allow_nan=False)), encoding="utf-8")
        aside.replace(folder / "status.json")

    @classmethod
    def read(cls, folder: Path) -> LiveStatus | None:
        """Return the status, or None if the run has written none or it is damaged."""
        try:
            return TypeAdapter(cls).validate_json((folder / "status.json").read_bytes())
        except (OSError, ValueError):
            return None

    @classmethod
    def is_alive(cls, folder: Path) -> bool:
        """Return whether the run of this folder is probably active."""
        status = cls.read(folder)
        return status is not None and status.alive()

    def alive(self, now: float | None = None) -> bool:
        """Return whether the run is probably active.

        It is if it has not ended, was updated recently, and its process exists if it should be in this container.
        """
        now = time.time() if now is None else now
        if self.state in OVER or now - self.time > STALE_S:
            return False
        return not is_visible(vars(self)) or alive(self.pid)


def find_run(text: str) -> Path:
    """Return the folder of a run from its path or its id (the folder's name under `runs/`). The run may be starting.

    Raises RunFolderError, which names the closest existing run.
    """
    for path in (Path(text), Path(RUNS) / text):
        if (path / "config.yaml").is_file() or (path / "status.json").is_file():
            return path.absolute()
    there = [p.parent.name for p in Path(RUNS).glob("*/config.yaml")]
    near = f"; the closest match in {RUNS}/ is {nearest_first(text, there)[0]}" if there else ""
    raise RunFolderError("run", text, f"not a run folder (no config.yaml in it) and not a run of {RUNS}/{near}")
