"""The ablations of docs/how-to/stages.md are composed and checked as written."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hamr import cli
from tests.docs_pages import DOCS, commands


@pytest.mark.deep
def test_ablations_are_checked_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (command,) = (c for c in commands(DOCS / "how-to" / "stages.md") if "pipeline=hrm_ablations" in c)
    inputs = dict(
        word.removeprefix("inputs.").split("=") for word in shlex.split(command) if word.startswith("inputs.")
    )
    for name, path in inputs.items():
        file = {"single": "train.jsonl", "multi": "train.jsonl", "cascade": "rewards/calibrated.yaml"}.get(name, "")
        target = tmp_path / path / file if file else tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("consistency: {mode: hybrid}\n" if name == "cascade" else "{}\n")
    assert cli.main(shlex.split(command)[1:]) == 0
    shown = capsys.readouterr().out
    assert "ecs_multi_gt (takes multi_gt.run, ours.run)" in shown
