"""`status.json` of a run folder: what a run says of itself while it lives, so that anybody may look without Ray."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hamr.config.overrides import nearest_first
from hamr.errors import RunFolderError
from hamr.security.processes import alive
from hamr.security.redaction import blot

STALE_S = 30.0
"""Without a sign of life for so long, a run counts as gone."""
RUNS = "runs"

State = Literal["starting", "running", "finished", "preempted", "failed"]
OVER = ("finished", "preempted", "failed")


@dataclass(frozen=True, kw_only=True)
class LiveStatus:
    """`time` and `started` in seconds since the epoch; `pools` as `hamr.apps.train.live_control` gathers them."""

    run: str
    state: State
    phase: str
    started: float
    time: float
    pid: int = field(default_factory=os.getpid)
    host: str = field(default_factory=socket.gethostname)
    pools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    dashboard: str | None = None
    detail: str = ""

    def write(self, folder: Path) -> None:
        # Written anew every few seconds: a reader must see a whole file, a crash of the machine may cost it.
        aside = folder / ".status.json.tmp"
        aside.write_text(blot(json.dumps(vars(self), allow_nan=False)), encoding="utf-8")
        aside.replace(folder / "status.json")

    @classmethod
    def read(cls, folder: Path) -> LiveStatus | None:
        """None where a run never got so far, or an unknown version wrote it."""
        try:
            return cls(**json.loads((folder / "status.json").read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def alive(self, now: float | None = None) -> bool:
        """Whether it runs as far as can be told: it has not said good-bye, gave a sign of life lately, and its process
        is there if it should be on this machine."""
        now = time.time() if now is None else now
        if self.state in OVER or now - self.time > STALE_S:
            return False
        return self.host != socket.gethostname() or alive(self.pid)


def find_run(text: str, root: Path | None = None) -> Path:
    """The folder of a run, from its path or its id (the folder's name under `runs/`).

    Raises RunFolderError, which names the nearest run that there is.
    """
    root = root or Path(RUNS)
    for path in (Path(text), root / text):
        if (path / "config.yaml").is_file():
            return path.absolute()
    there = [p.parent.name for p in root.glob("*/config.yaml")]
    near = f"; the nearest in {root}/ is {nearest_first(text, there)[0]}" if there else ""
    raise RunFolderError("run", text, f"no run folder (no config.yaml in it) and no run of {root}/{near}")
