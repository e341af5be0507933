"""Sinks other than W&B: the same values under the same names; a failed sink does not affect the run."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import sys
import types
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hamr.apps.shared.sinks import check_sinks, open_sinks
from hamr.cluster.prometheus import PrometheusSink, gauge_of, reading
from hamr.config.load import load_config
from hamr.config.logging import LoggingConfig
from hamr.errors import BadInput
from hamr.telemetry.glossary import METRICS, lookup
from hamr.telemetry.sinks import Sink, Sinks, shown_as
from hamr.telemetry.tracker_sinks import MlflowSink, TensorboardSink, TrackioSink
from hamr.telemetry.wandb_sink import WandbSink, files_to_upload
from scripts import grafana
from tests.docs_pages import DOCS, commands

FIGURES = {"reward/total/mean": 0.5, "router/queue_s/judge/p90": 2.0, "policy/grad_norm": math.nan}


class Scripted(Sink):
    def __init__(self, *, fails: bool = False) -> None:
        self.heard: list[Any] = []
        self.fails = fails

    def metrics(self, step: int, stage: str, values: Any) -> None:
        self.heard.append((step, stage, dict(values)))
        if self.fails:
            raise ConnectionError("gone with key-of-bad")

    def close(self, *, failed: bool = False) -> None:
        self.heard.append(failed)


def test_failed_sink_is_disabled_and_others_continue(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error may contain a key of the sink."""
    monkeypatch.setenv("SINK_API_KEY", "key-of-bad")
    good, bad = Scripted(), Scripted(fails=True)
    sinks = Sinks({"bad": bad, "good": good})
    for step in (1, 2):
        sinks.metrics(step, "rl", {"policy/loss": 1.0})
    sinks.close(failed=True)
    assert good.heard == [(1, "rl", {"policy/loss": 1.0}), (2, "rl", {"policy/loss": 1.0}), True]
    assert len(bad.heard) == 1
    said = "sink bad disabled for the rest of this run (ConnectionError: gone with [redacted])"
    assert [r.message for r in caplog.records] == [said]


def test_only_configured_sinks_are_opened(tmp_path: Path) -> None:
    sinks = open_sinks(load_config(["experiment=smoke"]), tmp_path, "r")
    sinks.metrics(1, "rl", FIGURES)
    sinks.close()
    assert list(tmp_path.iterdir()) == []


def test_metrics_of_two_stages_do_not_mix() -> None:
    assert shown_as("sft", "timing/train/optimizer") != shown_as("rl", "timing/train/optimizer")
    assert shown_as("eval-rl", "eval/rl/n") == "eval/rl/n"


# --- TensorBoard and MLflow --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "trackio"])
def test_missing_library_is_reported_before_the_start(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hamr.telemetry.sinks.find_spec", lambda wanted: None)
    with pytest.raises(BadInput, match=rf"logging\.sinks: '{name}': is not installed; pip install '{name}>="):
        check_sinks(LoggingConfig(sinks=(name,)))


class Writer:
    """As much of torch's SummaryWriter as is used."""

    def __init__(self, log_dir: str) -> None:
        self.log_dir, self.scalars, self.closed = log_dir, [], False
        Writer.last = self

    def add_scalar(self, tag: str, value: float, global_step: int) -> None:
        self.scalars.append((tag, value, global_step))

    def flush(self) -> None: ...

    def close(self) -> None:
        self.closed = True


def test_tensorboard_receives_finite_values_as_scalars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = types.ModuleType("torch.utils.tensorboard")
    fake.SummaryWriter = Writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    sink = TensorboardSink(tmp_path)
    sink.metrics(3, "rl", FIGURES)
    sink.close()
    writer: Any = Writer.last
    assert writer.scalars == [("reward/total/mean", 0.5, 3), ("router/queue_s/judge/p90", 2.0, 3)]
    assert writer.log_dir == str(tmp_path / "tensorboard")
    assert writer.closed


class Mlflow(types.ModuleType):
    """As much of mlflow as is used."""

    def __init__(self) -> None:
        super().__init__("mlflow")
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id="abc"))

        return call


def test_mlflow_resumes_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    fake = Mlflow()
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    for _ in range(2):
        sink = MlflowSink(tmp_path, experiment="hamr", name="n", config={"a": {"b": 1, "api_key": "canary"}})
        sink.metrics(2, "rl", FIGURES)
        sink.close(failed=True)
    started = [kwargs["run_id"] for name, _, kwargs in fake.calls if name == "start_run"]
    assert started == [None, "abc"]
    assert [args for name, args, _ in fake.calls if name == "log_params"] == [
        ({"a.b": "1", "a.api_key": "[redacted]"},)
    ]
    logged = [(args[0], kwargs) for name, args, kwargs in fake.calls if name == "log_metrics"]
    assert logged[0] == ({"reward/total/mean": 0.5, "router/queue_s/judge/p90": 2.0}, {"step": 2})
    assert [args for name, args, _ in fake.calls if name == "end_run"] == [("FAILED",)] * 2


class Trackio(types.ModuleType):
    """As much of trackio as is used. Records the calls, and prints as it does."""

    def __init__(self) -> None:
        super().__init__("trackio")
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def init(self, **kwargs: Any) -> Any:
        print("* Trackio project initialized")
        self.calls.append(("init", kwargs))

        def log(metrics: dict[str, float], step: int) -> None:
            self.calls.append(("log", {"metrics": metrics, "step": step}))

        return types.SimpleNamespace(log=log, finish=lambda: print("* Run finished"))


def test_trackio_resumes_its_run_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", "")
    monkeypatch.delenv("TRACKIO_DIR")
    fake = Trackio()
    monkeypatch.setitem(sys.modules, "trackio", fake)
    sink = TrackioSink(tmp_path, project="hamr", name="n", config={"a": {"b": 1, "api_key": "canary"}})
    sink.metrics(2, "sft", FIGURES)
    sink.close(failed=True)
    (_, begun), (_, logged) = fake.calls
    assert (begun["project"], begun["name"], begun["resume"]) == ("hamr", "n", "allow")
    assert begun["config"] == {"a": {"b": 1, "api_key": "[redacted]"}}
    assert not begun["auto_log_gpu"] and not begun["auto_log_cpu"]
    assert logged == {"metrics": {"sft/reward/total/mean": 0.5, "sft/router/queue_s/judge/p90": 2.0}, "step": 2}
    assert os.environ["TRACKIO_DIR"] == str(tmp_path / "trackio")
    assert capsys.readouterr().out == ""


# --- names and options -------------------------------------------------------------------------


def test_trackers_get_the_configured_name_or_that_of_the_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: dict[str, dict[str, Any]] = {}

    def opens(kind: str, folder: Path, *options: Any, **given: Any) -> None:
        opened[kind] = given | {"options": options}

    for kind in ("WandbSink", "MlflowSink", "TrackioSink"):
        monkeypatch.setattr(f"hamr.apps.shared.sinks.{kind}", partial(opens, kind))
    [documented] = [c for c in commands(DOCS / "how-to" / "stop-and-resume.md") if "logging.wandb.notes" in c]
    words = [word for word in shlex.split(documented) if word.startswith("logging.")]
    options = [word for word in words if not word.startswith("logging.wandb.name")]
    for folder in (tmp_path / "smoke-1125-1443", tmp_path / "smoke-1125-1507", tmp_path / "sweep" / "0"):
        opened.clear()
        open_sinks(load_config(["experiment=smoke", *options]), folder.with_name("renamed"), folder.name)
        # The id of a run is the name that its folder had first.
        default = "smoke-sweep-0" if folder.name == "0" else folder.name
        assert {given["name"] for given in opened.values()} == {default}
    [wandb] = opened["WandbSink"]["options"]
    assert (wandb.notes, wandb.system_metrics) == ("lower temperature", True)
    assert opened["TrackioSink"]["system_metrics"]
    opened.clear()
    open_sinks(load_config(["experiment=smoke", *words]), tmp_path, "r")
    assert {given["name"] for given in opened.values()} == {"cooler"} and opened.keys() == {"WandbSink", "TrackioSink"}


# --- W&B ---------------------------------------------------------------------------------------


def test_ledger_and_newest_checkpoint_are_uploaded(tmp_path: Path) -> None:
    for step in (0, 9, 10):
        (tmp_path / "checkpoints" / f"step_{step}").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step_11.tmp").mkdir()
    assert files_to_upload(tmp_path) == [("checkpoint", tmp_path / "checkpoints" / "step_10")]
    (tmp_path / "ledger.sqlite").write_text("")
    assert [kind for kind, _ in files_to_upload(tmp_path)] == ["ledger", "checkpoint"]
    assert files_to_upload(tmp_path / "empty") == []


@pytest.mark.parametrize("artifacts", [True, False])
def test_group_job_type_tags_and_artifacts_reach_w_and_b(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, artifacts: bool
) -> None:
    (tmp_path / "ledger.sqlite").write_text("rows")
    (tmp_path / "checkpoints" / "step_1").mkdir(parents=True)
    calls: list[Any] = []

    class Artifact:
        def __init__(self, name: str, type: str) -> None:
            self.name, self.type, self.paths = name, type, []

        def add_file(self, path: str) -> None:
            self.paths.append(path)

        add_dir = add_file

    run = types.SimpleNamespace(
        define_metric=lambda *a, **k: None,
        log=lambda row: None,
        log_artifact=calls.append,
        finish=lambda exit_code: calls.append("finished"),
    )
    given: dict[str, Any] = {}
    fake = types.ModuleType("wandb")
    vars(fake).update(Settings=dict, Artifact=Artifact, init=lambda **k: given.update(k) or run)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    wanted = ["group=sweep-1", "tags=[a,b]", f"artifacts={artifacts}"]
    config = load_config(["experiment=smoke", "logging=offline", *(f"logging.wandb.{value}" for value in wanted)])
    open_sinks(config, tmp_path, "r").close()
    assert (given["group"], given["job_type"], given["tags"]) == ("sweep-1", "train", ["a", "b"])
    assert calls[-1] == "finished"
    assert [a.type for a in calls[:-1]] == (["ledger", "checkpoint"] if artifacts else [])
    assert isinstance(open_sinks(load_config(["experiment=smoke"]), tmp_path, "r")._sinks["W&B"], WandbSink)


# --- Prometheus and Grafana --------------------------------------------------------------------


def test_every_metric_has_its_own_gauge() -> None:
    gauges = [gauge_of(m) for m in METRICS]
    assert len({g.name for g in gauges}) == len(METRICS)
    for gauge in gauges:
        assert re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", gauge.name)
        assert len(set(gauge.labels)) == len(gauge.labels)


def test_placeholders_become_labels() -> None:
    known = reading("router/queue_s/judge/p90")
    assert known is not None
    gauge, labels = known
    assert (gauge.name, gauge.labels) == ("hamr_router_queue_s", ("run", "stage", "pool", "stat"))
    assert labels == {"pool": "judge", "stat": "p90"}
    inside = reading("router/band/below_frac")
    assert inside is not None
    assert (inside[0].name, inside[1]) == ("hamr_router_band_frac", {"band": "below"})
    assert reading("nobody/knows/this") is None


def test_gauges_are_set_with_all_labels() -> None:
    made: dict[str, Any] = {}

    class Gauge:
        def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
            assert name not in made
            made[name] = self
            self.keys, self.set_to = tag_keys, []

        def set(self, value: float, tags: dict[str, str]) -> None:
            assert set(tags) == set(self.keys)
            self.set_to.append((value, tags))

    sink = PrometheusSink("r", gauge=Gauge)
    sink.metrics(1, "rl", {**FIGURES, "nobody/knows": 1.0})
    sink.metrics(2, "rl", FIGURES)
    assert set(made) == {"hamr_reward_total_mean", "hamr_router_queue_s", "hamr_progress_step"}
    assert [value for value, _ in made["hamr_progress_step"].set_to] == [1.0, 2.0]
    assert (
        made["hamr_router_queue_s"].set_to == [(2.0, {"run": "r", "stage": "rl", "pool": "judge", "stat": "p90"})] * 2
    )


def test_shipped_dashboard_matches_the_metric_names() -> None:
    assert (Path(__file__).parents[3] / "launch" / "grafana.json").read_text() == grafana.text()


def test_every_panel_shows_an_emitted_metric() -> None:
    emitted = {f"ray_{gauge_of(m).name}": set(gauge_of(m).labels) for m in METRICS}
    board = json.loads(grafana.text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            name, labels = re.fullmatch(r"(\w+)\{(.*)\}", target["expr"]).groups()  # type: ignore[union-attr]
            assert name in emitted, panel["title"]
            assert set(re.findall(r"(\w+)=", labels)) <= emitted[name]
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= emitted[name]
    for variable in board["templating"]["list"][1:]:
        assert re.match(r"label_values\((\w+),", variable["query"]["query"])[1] in emitted  # type: ignore[index]
    assert all(lookup(name) is not None for _, names in grafana.PANELS for name in names)
