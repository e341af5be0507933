"""Resuming a run that has nothing left to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hamr.apps.shared.training_job import Job
from hamr.apps.train.run import finished_step
from hamr.cli import main
from hamr.config.load import dump_config, load_config
from hamr.telemetry.live import LiveStatus
from hamr.telemetry.run_folder import RunFolder
from hamr.trainer.checkpoints import Checkpoints


@pytest.fixture
async def run(tmp_path: Path) -> Path:
    """A finished run of two steps, which has the checkpoint of the second."""
    config = load_config(["experiment=smoke"])
    with RunFolder.create(tmp_path / "run", dump_config(config)) as folder:
        rows = ({"stage": "rl", "step": step, "time": float(step)} for step in (1, 2))
        folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))

        async def write(aside: Path) -> None:
            (aside / "policy").mkdir()

        await Checkpoints(folder.checkpoints).save(2, write, {})
        say(folder.path, "finished")
    return folder.path


def say(path: Path, state: str) -> None:
    LiveStatus(run="run", state=state, phase="", started=0.0, time=0.0).write(path)


def test_finished_run_is_left_as_it_is(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert main(["train", f"resume={run}"]) == 0
    assert capsys.readouterr().out == f"the run has finished step 2, its last\nreport: {run / 'report.html'}\n"
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_run_without_its_last_step_is_continued(run: Path) -> None:
    assert finished_step(Job.from_folder(run)) == 2
    say(run, "failed")
    assert finished_step(Job.from_folder(run)) is None
    say(run, "finished")
    (run / "metrics.jsonl").write_text(
        (run / "metrics.jsonl").read_text() + '{"stage": "rl", "step": 3, "time": 3.0}\n'
    )
    assert finished_step(Job.from_folder(run)) is None, "the checkpoint of step 3 was removed"
