"""TensorBoard, MLflow and Trackio with their own libraries, which the lock files omit; skipped without them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from hamr.telemetry.tracker_sinks import MlflowSink, TensorboardSink, TrackioSink

pytestmark = [pytest.mark.integration]

FIGURES = {"reward/total/mean": 0.5, "policy/grad_norm": math.nan}


def test_tensorboard_shows_a_resumed_run_as_one(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for step in (1, 2):
        sink = TensorboardSink(tmp_path)
        sink.metrics(step, "rl", FIGURES)
        sink.close()
    read = reading.EventAccumulator(str(tmp_path / "tensorboard"))
    read.Reload()
    assert read.Tags()["scalars"] == ["reward/total/mean"], "what is not a number is left out"
    assert [(event.step, event.value) for event in read.Scalars("reward/total/mean")] == [(1, 0.5), (2, 0.5)]


def test_mlflow_has_one_run_for_a_resumed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    config = {"algorithm": {"clip_high": 0.28}, "pools": {"judge": {"api_key": "canary", "prompt": "x" * 9000}}}
    for step, failed in ((1, True), (2, False)):
        sink = MlflowSink(tmp_path, experiment="hamr", name="of-mine", config=config)
        sink.metrics(step, "rl", FIGURES)
        sink.close(failed=failed)
    client = mlflow.MlflowClient()
    [experiment] = [e for e in client.search_experiments() if e.name == "hamr"]
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.run_id == (tmp_path / "mlflow" / "id").read_text().strip()
    assert (run.info.run_name, run.info.status) == ("of-mine", "FINISHED")
    assert run.data.params["algorithm.clip_high"] == "0.28"
    assert run.data.params["pools.judge.api_key"] == "[redacted]"
    history = client.get_metric_history(run.info.run_id, "reward/total/mean")
    assert [(m.step, m.value) for m in history] == [(1, 0.5), (2, 0.5)]
    assert set(run.data.metrics) == {"reward/total/mean"}
    assert {path.name for path in tmp_path.iterdir()} == {"mlflow"}, "all of it in the run folder"


def test_trackio_has_one_run_for_a_resumed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    for step in (1, 2):
        sink = TrackioSink(tmp_path, project="hamr", name="of-mine", config={"judge": {"api_key": "canary"}, "n": 1})
        sink.metrics(step, "rl", FIGURES)
        sink.close()
    [run] = trackio.Api().runs("hamr")
    assert run.name == "of-mine"
    assert run.config["judge"]["api_key"] == "[redacted]" and run.config["n"] == 1
    rows = SQLiteStorage.get_logs("hamr", "of-mine", run_id=run.id)
    assert [(row["step"], row["reward/total/mean"]) for row in rows] == [(1, 0.5), (2, 0.5)]
    assert {path.name for path in tmp_path.iterdir()} == {"trackio"}, "all of it in the run folder"
