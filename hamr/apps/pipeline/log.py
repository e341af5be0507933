"""Event log of a pipeline: one row when a stage starts, one when it ends."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hamr.files import cut_torn_tail, read_jsonl
from hamr.security.processes import has_ended
from hamr.telemetry.run_folder import owner_of

PLAN = "pipeline.json"
EVENTS = "events.jsonl"
LOCK = "pipeline.lock"
"""Names the process that runs the stages."""
End = Literal["finished", "failed", "stopped"]
StageState = Literal["finished", "failed", "stopped", "begun", "waiting"]


def is_pipeline(folder: Path) -> bool:
    """Return whether a folder belongs to a pipeline."""
    return (folder / PLAN).is_file()


def pipeline_owner(folder: Path) -> dict[str, Any] | None:
    """Return the `identity` of the process that runs a pipeline's stages, or None if none does."""
    owner = owner_of(folder, LOCK)
    return None if owner is None or has_ended(owner) else owner


@dataclass(frozen=True, kw_only=True)
class Attempts:
    """State of a stage. `seconds`: total of all processes that ended normally; a killed process is not counted."""

    state: StageState = "waiting"
    seconds: float = 0.0
    attempts: int = 0
    command: tuple[str, ...] = ()


class PipelineLog:
    """Appends rows and reads them back. An incomplete last row (its process was killed) is ignored."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / EVENTS

    def begin(self, stage: str, command: Sequence[str]) -> None:
        self._append({"stage": stage, "event": "begun", "command": list(command)})

    def end(self, stage: str, how: End, seconds: float, code: int | None = None) -> None:
        self._append({"stage": stage, "event": how, "seconds": round(seconds, 3), "code": code})

    def is_finished(self, stage: str) -> bool:
        return self.of(stage).state == "finished"

    def of(self, stage: str) -> Attempts:
        rows = [row for row in read_jsonl(self.path) if row.get("stage") == stage]
        if not rows:
            return Attempts()
        begun = [row for row in rows if row["event"] == "begun"]
        return Attempts(
            state=rows[-1]["event"],
            seconds=sum(row.get("seconds", 0.0) for row in rows),
            attempts=len(begun),
            command=tuple(begun[-1]["command"]) if begun else (),
        )

    def _append(self, row: dict[str, Any]) -> None:
        cut_torn_tail(self.path)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.time(), **row}) + "\n")
            file.flush()
            os.fsync(file.fileno())
