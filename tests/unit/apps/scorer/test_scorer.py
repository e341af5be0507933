"""Preparation of a scorer for fine-tuning."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from hamr.apps.scorer import prepare as scorer
from hamr.apps.scorer.lessons import Lessons, VerdictExam
from hamr.cluster.session import sigterm_as_exit
from hamr.config.pools import PoolConfig, ScorerTrainingConfig
from hamr.config.schema import Config
from hamr.errors import BadInput


def test_data_without_both_classes_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imported tickets have one reply per sample, so no two replies are known to agree."""
    monkeypatch.setenv("HAMR_CACHE", str(tmp_path))
    monkeypatch.setattr(scorer, "resolve_model", lambda name: tmp_path)
    pool = PoolConfig(role="reranker", prompt="reranker_short.en", finetune=ScorerTrainingConfig())
    exam = VerdictExam(questions=[[1], [2]], values={}, labels=[False, False], overlap=[0.1, 0.2])
    lessons = Lessons(basis=[], exam=lambda: exam, examples=list)
    with pytest.raises(BadInput, match=r"pools\.reranker\.finetune.*data multigt"):
        scorer.prepare_scorer("reranker", pool, lambda: lessons, print)


def test_scorer_is_trained_by_one_process_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second process waits and uses the result of the first. A pool's name may contain a dot."""
    monkeypatch.setenv("HAMR_CACHE", str(tmp_path))
    monkeypatch.setattr(scorer, "resolve_model", lambda name: tmp_path)
    pool = PoolConfig(role="judge", prompt="judge_short.en", finetune=ScorerTrainingConfig())
    lessons = Lessons(basis=[], exam=lambda: pytest.fail("it is trained already"), examples=list)
    facts = {"raw_auc": 0.5, "raw_word_overlap_auc": 0.6, "finetuned": True}
    said: list[str] = []

    def first_one_ends(line: str) -> None:
        said.append(line)
        scorers.joinpath(f"{made}.json").write_text(json.dumps(facts))
        fcntl.flock(lock, fcntl.LOCK_UN)

    scorers = tmp_path / "scorers"
    scorers.mkdir()
    recipe = json.dumps([scorer.RECIPE_VERSION, [str(tmp_path.resolve())] * 2])
    made = f"judge.b-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    with (scorers / f".{made}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        tuned = scorer.prepare_scorer("judge.b", pool, lambda: lessons, scorer.Progress(first_one_ends))
    assert said == ["judge.b: another process trains the same scorer; waiting for it"]
    assert tuned == scorer.TunedScorer(path=scorers / made, **facts)


def test_training_on_a_gpu_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    tuning = ScorerTrainingConfig(num_gpus=1)
    assert tuning.dtype == "bfloat16"
    pools = {"judge": PoolConfig(role="judge", prompt="judge_short.en", finetune=tuning)}
    config = Config.model_validate({"data": {"type": "sage"}}).model_copy(update={"pools": pools})
    with pytest.raises(BadInput, match=r"pools\.judge\.finetune\.num_gpus: 1: there is no GPU on this machine"):
        scorer.prepare_scorers(config, (), (), print)


@pytest.mark.parametrize("cores", [1, 2])
def test_stopped_job_ends_training_processes_and_lock_waits(
    cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pool trains in a separate process; the other waits for a lock or, with one core, for its turn. Then SIGTERM
    arrives.
    """
    monkeypatch.setenv("HAMR_CACHE", str(tmp_path))
    monkeypatch.setattr(scorer, "resolve_model", lambda name: tmp_path)
    monkeypatch.setattr(scorer, "check_template", lambda name, pool: None)
    monkeypatch.setattr(scorer.os, "cpu_count", lambda: cores)
    started, child = threading.Event(), 0

    def prepare(name, pool, lessons, progress, start, stop):
        nonlocal child
        if name == "judge":
            with scorer._alone(tmp_path / "judge", lambda: None, stop):
                pytest.fail("the lock is held elsewhere")
        with scorer.child_process("killed") as call:
            child = call(os.getpid)
            started.set()
            call(time.sleep, 600)

    monkeypatch.setattr(scorer, "prepare_scorer", prepare)
    tuned = {"reranker": "reranker_short.en", "judge": "judge_short.en"}
    pools = {
        role: PoolConfig(role=role, prompt=prompt, finetune=ScorerTrainingConfig()) for role, prompt in tuned.items()
    }
    config = Config.model_validate({"data": {"type": "sage"}}).model_copy(update={"pools": pools})
    main = threading.main_thread().ident

    def interrupt() -> None:
        started.wait()
        signal.pthread_kill(main, signal.SIGTERM)

    with (tmp_path / ".judge.lock").open("w") as lock, sigterm_as_exit():
        fcntl.flock(lock, fcntl.LOCK_EX)
        threading.Thread(target=interrupt).start()
        with pytest.raises(SystemExit):
            scorer.prepare_scorers(config, (), (), print)
    assert child and not psutil.pid_exists(child)
