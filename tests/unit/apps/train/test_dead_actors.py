"""Message of a run that a dead rank or engine ended."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hamr.apps.shared.training_job import stoppable
from hamr.config.load import load_config
from hamr.errors import EngineDied

REASON = "trainer rank 0 died: Worker unexpectedly exits"


class RemoteError(EngineDied):
    """Stand-in for Ray's error: its text is a traceback, its cause the error."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("Traceback (most recent call last):\n  ...")
        self.cause = cause


@pytest.mark.parametrize("error", [EngineDied(REASON), RemoteError(EngineDied(REASON))], ids=["own", "remote"])
@pytest.mark.parametrize(("command", "local"), [("train", True), ("sft", False)])
def test_message_names_reason_log_and_resume_command(
    tmp_path: Path, error: EngineDied, command: str, local: bool
) -> None:
    job: Any = SimpleNamespace(path=tmp_path, config=load_config(["experiment=smoke"]))
    if local:
        (tmp_path / "logs").mkdir()
    with pytest.raises(EngineDied) as caught, stoppable(job, command):
        raise error
    log = f"its log is kept in {tmp_path}/logs" if local else "its log is in Ray's dashboard"
    assert str(caught.value) == f"{REASON}; {log}; continue with: hamr {command} resume={tmp_path}"
