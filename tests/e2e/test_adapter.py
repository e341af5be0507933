"""A run whose engines serve the LoRA adapter that the trainer trains."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hamr.telemetry.metrics import read_metrics
from tests.e2e.runs import hamr
from tests.integration.endpoints import scorer_endpoint

pytestmark = [pytest.mark.e2e, pytest.mark.deep, pytest.mark.timeout(300)]

SETTINGS = {
    "experiment": "smoke",
    "trainer.lora": "{rank: 4}",
    "trainer.learning_rate": 1e-2,
    "rollout.transfer": "adapter",
    "experiment.steps": 2,
    "experiment.sft.steps": 3,
    "experiment.sft.learning_rate": 1e-2,
    "experiment.asynchrony.max_policy_age": 1,
    "experiment.run_dir": "run",
    "algorithm.dynamic_sampling.enabled": False,
    "cluster.allow_unauthenticated": True,
}


def test_engines_have_the_policy_of_warm_up_and_training(tmp_path: Path) -> None:
    """The warm-up's adapter is merged into the trainer's weights, but not into those of the engines."""
    with scorer_endpoint() as scorers:
        settings = SETTINGS | scorers.judge
        done = subprocess.run(hamr("train", **settings), cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [row for row in read_metrics(tmp_path / "run" / "metrics.jsonl") if row["stage"] == "rl"]
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["policy/update_ratio"] > 0 and row["timing/sync/load"] > 0
        assert row["rollout/logprob_diff/max"] < 1e-3, "trainer and engine disagree about the same tokens"
