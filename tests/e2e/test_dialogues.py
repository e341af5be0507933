"""RL on whole dialogues with real engines: a few steps of `experiment=dialogues`, and of the user's own function."""

from __future__ import annotations

import json
import subprocess
from itertools import groupby
from pathlib import Path

import psutil
import pytest

from hamr.telemetry.ledger import Ledger
from tests.docs_pages import DOCS, documented, run_python, save_files
from tests.e2e.runs import hamr
from tests.killing import children, kill_all

pytestmark = [pytest.mark.e2e, pytest.mark.deep, pytest.mark.timeout(600)]

HOOKS = DOCS / "reference" / "hooks.md"
TUTORIAL = DOCS / "tutorials" / "5-dialogues.md"
COMMAND = documented("tutorials/5-dialogues.md", "experiment=dialogues experiment.run_dir=run")
SMALL = {
    "experiment.steps": 2,
    "experiment.prompts_per_step": 2,
    "experiment.eval_every": 0,
    "experiment.sft.steps": 20,
    "rollout.samples_per_prompt": 3,
    "rollout.max_turns": 4,
    "trainer.threads": 1,
    "data.sage.train": 48,
    "data.sage.test": 8,
    "data.sage.validation": 8,
    "logging": "offline",
}


def test_environment_class_trains_as_documented(tmp_path: Path, joined: tuple[str, ...]) -> None:
    """The random policy of the documented command calls no tool, so every dialogue is one turn with reward 0."""
    save_files(HOOKS, tmp_path)
    words = documented("reference/hooks.md", "my_environment.py")
    command = [*hamr(*words, **{"experiment.run_dir": "run", "logging": "offline"}), *joined]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    for row in (line for line in lines if line.get("stage") == "rl"):
        assert row["episodes/ended_frac"] + row["episodes/max_turns_frac"] == 1.0
        assert row["episodes/component/reward"] == row["episodes/reward/mean"]
    assert any("eval/rl/episodes/reward" in line for line in lines)
    with Ledger(tmp_path / "run/ledger.sqlite", readonly=True) as ledger:
        records = [r for r in ledger.rows() if r.episode is not None]
    assert records and all(r.observation.startswith("Where is my parcel ") for r in records if not r.key.turn)


def test_few_steps_of_dialogues(
    tmp_path: Path, joined: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*hamr(*COMMAND, **SMALL), *joined]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    rl = [line for line in lines if line.get("stage") == "rl"]
    assert len(rl) == 2
    for row in rl:
        ends = ("ended", "max_turns", "context_full", "failed")
        assert (
            sum(row[f"episodes/{end}_frac"] for end in ends) == pytest.approx(1.0) and not row["episodes/failed_frac"]
        )
        assert 1 <= row["episodes/turns/mean"] <= 4 and 0 <= row["episodes/component/completion"] <= 1
    stages = {line["stage"]: line for line in lines if "eval/" in str(line.keys())}
    for stage in ("base", "sft", "rl"):
        found = {k.rpartition("/")[2]: v for k, v in stages[f"eval-{stage}"].items() if f"eval/{stage}/episodes/" in k}
        assert found["n"] == 8 and 1 <= found["turns"] <= 4 and 0 <= found["completion"] <= 1
    with Ledger(tmp_path / "run/ledger.sqlite", readonly=True) as ledger:
        every = list(ledger.rows())
    records = [r for r in every if "/eval-" not in r.key.run]
    held = groupby(records, key=lambda r: (r.key.step, r.key.prompt, r.key.attempt, r.key.sample))
    for _, dialogue in held:
        turns = list(dialogue)
        assert [r.key.turn for r in turns] == list(range(len(turns))) and all(r.observation for r in turns)
        assert [r.episode is not None for r in turns] == [False] * (len(turns) - 1) + [True]
    monkeypatch.chdir(tmp_path)
    run_python(TUTORIAL)
    printed = capsys.readouterr().out
    assert printed.count("  policy:   ") == sum(1 for r in every if r.key.run.endswith("/eval-rl/dialogues")) >= 8


def test_killed_run_resumes_with_the_same_customers(tmp_path: Path, joined: tuple[str, ...]) -> None:
    """The second step is repeated after a kill, and has the customers and first messages of an undisturbed run."""
    base = [*hamr(*COMMAND, **SMALL | {"experiment.checkpoint.every": 1}), *joined]

    def customers(name: str) -> list[tuple[object, ...]]:
        with Ledger(tmp_path / name / "ledger.sqlite", readonly=True) as ledger:
            first = [r for r in ledger.rows() if "/" not in r.key.run and not r.key.turn]
        return sorted((r.key.step, r.key.prompt, r.key.attempt, r.key.sample, r.observation) for r in first)

    done = subprocess.run([*base, "experiment.run_dir=whole"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    command = [*base, "experiment.run_dir=killed"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any("rl step 1/" in line for line in process.stdout)
        family = children(psutil.Process(process.pid))
        process.kill()
        kill_all(family)
    resumed = hamr("train", "resume=killed")
    done = subprocess.run(resumed, cwd=tmp_path, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr
    assert customers("killed") == customers("whole")


def test_documented_episode_function_is_trained_on(tmp_path: Path, joined: tuple[str, ...]) -> None:
    """Without scorers, since no reward of the configuration scores its turns."""
    save_files(HOOKS, tmp_path)
    small = {"experiment.run_dir": "run", "experiment.steps": 1, "rewards.consistency.mode": "exact"}
    words = [*hamr(*documented("reference/hooks.md", "env=my_episode.py:run"), **small), *joined]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    [row] = [line for line in lines if line.get("stage") == "rl"]
    assert row["episodes/failed_frac"] == 0 and 0 <= row["episodes/component/completion"] <= 1
    with Ledger(tmp_path / "run/ledger.sqlite", readonly=True) as ledger:
        ends = [r for r in ledger.rows() if r.episode is not None]
    assert len(ends) >= 4 and all(r.key.turn < 3 for r in ends)
