"""A training run with simulated customers, who are a pool of the run, as are the judges; real engines, tiny models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hamr.observability.metrics import read_metrics

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

OPTIONS = [
    "experiment=smoke",
    "experiment.run_dir=out",
    "model.max_context=4096",
    "experiment.sage.scenarios=[telecom_package]",
    "experiment.sage.simulator=judge",
    "experiment.sage.judges=[judge]",
    "experiment.sage.limit=3",
    "experiment.sage.max_turns=2",
    "experiment.sage.every=1",
    "experiment.sage.user_tokens=8",
    "pools.judge.max_context=4096",
    "pools.judge.answer_tokens=16",
]


def test_customers_talk_to_the_engines_before_between_and_after(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hamr", "train", *OPTIONS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {}
    for row in read_metrics(tmp_path / "out" / "metrics.jsonl"):
        stage = row["stage"].removeprefix("eval-")
        found |= {stage: row["step"]} if f"eval/{stage}/sage/dialogues" in row else {}
    assert found == {"base": 0, "rl-1": 1, "rl": 2}
    for stage in found:
        rows = [json.loads(line) for line in (tmp_path / "out" / "sage" / stage / "traces.jsonl").open()]
        assert len(rows) == 3 and {row["simulator"] for row in rows} == {"judge"}
        assert not {"agent_failed", "user_failed", "context_full"} & {row["outcome"] for row in rows}
        assert (tmp_path / "out" / "sage" / stage / "report.html").is_file()
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert set(summary["dialogues"]) == {"base", "rl-1", "rl"}
    assert "Whole dialogues" in (tmp_path / "out" / "report.html").read_text()
