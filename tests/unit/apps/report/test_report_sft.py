"""The report of a run of `hamr sft`: losses, and nothing about rewards."""

from __future__ import annotations

from pathlib import Path

import pytest

from hamr.apps.report.data import ReportData
from hamr.apps.report.figures_sft import sft_verdict, validated_sets
from hamr.apps.report.report import verdict, write_report
from hamr.telemetry.recorder import RunRecorder
from hamr.telemetry.run_folder import RunFolder

CONFIG = "experiment: {name: tuned}\nsft: {sets: [{path: dra.jsonl, weight: 1.0}, {path: patm.jsonl, weight: 1.0}]}\n"


def sft_run(path: Path, *, validate: bool = True) -> RunFolder:
    with RunFolder.create(path, CONFIG) as folder, RunRecorder(folder) as recorder:
        for step in range(4):
            if step:
                recorder.begin("sft", 3)
                recorder.metrics(step, {"sft/loss": 2.0 / step, "sft/learning_rate": 1e-4, "sft/computed_tokens": 90.0})
            if validate and step in (0, 2, 3):
                values = {"dra/loss": 3.0 - step, "dra/rationale": 2.0, "dra/action": 1.0}
                values |= {"patm/loss": 4.0 - step, "patm/action": 1.5, "patm/environment": 2.5}
                recorder.evaluation("validation", step, {f"eval/validation/{k}": v for k, v in values.items()})
    return folder


def test_verdict_has_initial_and_final_loss_of_every_set(tmp_path: Path) -> None:
    data = ReportData.read(sft_run(tmp_path / "run").path)
    assert validated_sets(data) == ["dra", "patm"]
    assert data.series("eval/validation/dra/loss", "validation") == ([0, 2, 3], [3.0, 1.0, 0.0])
    assert verdict(data) == (
        "3 steps; validation loss, nats per token: dra from 3.000 to 0.000, patm from 4.000 to 1.000."
    )


def test_page_has_sft_plots_only(tmp_path: Path) -> None:
    folder = sft_run(tmp_path / "run")
    html = write_report(folder.path).read_text()
    drawn = {file.stem for file in folder.plots.glob("*.png")}
    assert drawn == {"validation_loss", "loss_by_part", "sft_learning_rate"}
    assert "RL steps" not in html and "responses scored" not in html


def test_verdict_states_missing_validation(tmp_path: Path) -> None:
    folder = sft_run(tmp_path / "run", validate=False)
    assert verdict(ReportData.read(folder.path)) == "3 steps; nothing was validated."
    write_report(folder.path)


@pytest.mark.parametrize("config", ["experiment: {name: rl}\n", "sft: {sets: []}\n"])
def test_sft_verdict_is_none_for_other_runs(config: str, tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", config) as folder:
        pass
    assert sft_verdict(ReportData.read(folder.path)) is None
