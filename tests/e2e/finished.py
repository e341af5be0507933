"""Checks that hold for every finished run with the settings COMPARED, whether or not it was disturbed."""

from __future__ import annotations

import json
from pathlib import Path

from hamr.apps.score.run import replay_run
from hamr.apps.shared.preparation import prepare
from hamr.config.load import load_config
from hamr.data.stream import PromptStream
from hamr.telemetry.ledger import Ledger
from hamr.telemetry.metrics import read_metrics
from hamr.trainer.checkpoints import Checkpoints
from hamr.types import Failure
from tests.e2e.runs import COMPARED


def whole_folder(run: Path) -> None:
    for name in ("config.yaml", "metrics.jsonl", "ledger.sqlite", "summary.json", "report.html", "samples.jsonl"):
        assert (run / name).stat().st_size > 0, name
    assert (run / "checkpoints" / "step_4" / "policy" / "model.safetensors").is_file()
    assert list((run / "plots").glob("*.png"))
    assert list((run / "wandb").rglob("*.wandb"))
    summary = json.loads((run / "summary.json").read_text())
    assert set(summary["stages"]) == {"base", "sft", "rl"}
    assert set(summary["scorers"]) == {"reranker"}, "an endpoint's model is not prepared here"


def measured_steps(run: Path) -> None:
    rows = [row for row in read_metrics(run / "metrics.jsonl") if row["stage"] == "rl"]
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        assert row["rollout/logprob_diff/max"] < 1e-3, "trainer and engine disagree about the same tokens"
        assert row["timing/step/total"] >= row["timing/step/train"] >= 0


def one_record_a_response_that_replays(run: Path) -> None:
    with Ledger(run / "ledger.sqlite", readonly=True) as ledger:
        records = list(ledger.rows())
    assert len({record.key for record in records}) == len(records) > 0
    assert not any(isinstance(record.total, Failure) for record in records)
    assert replay_run(run) == 0


def draws_of_the_stream(run: Path) -> None:
    """Each step has the prompts that an undisturbed stream gives it, and the run ends at the stream's place."""
    config = load_config([f"{key}={value}" for key, value in COMPARED.items()])
    stream = PromptStream(prepare(config).splits.train, config.experiment.seed + 1)
    expected = {
        step: {(sample.id, i) for sample in stream.take(config.experiment.prompts_per_step) for i in range(4)}
        for step in range(1, config.experiment.steps + 1)
    }
    with Ledger(run / "ledger.sqlite", readonly=True) as ledger:
        keys = [r.key for r in ledger.rows() if "/eval" not in r.key.run]
    assert {step: {(k.prompt, k.sample) for k in keys if k.step == step} for step in expected} == expected
    assert len({*keys}) == 4 * 16
    newest = Checkpoints(run / "checkpoints").newest()
    assert newest is not None
    assert (newest.step, newest.state["stream"]) == (4, stream.state())


CHECKS = (whole_folder, measured_steps, one_record_a_response_that_replays, draws_of_the_stream)
