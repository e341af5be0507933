"""Before a scorer is fine-tuned."""

from __future__ import annotations

from pathlib import Path

import pytest

from hamr.config.pools import PoolConfig, ScorerTrainingConfig
from hamr.errors import BadInput
from hamr.jobs import scorer
from hamr.jobs.scorer_lessons import Exam, Lessons


def test_data_in_which_nothing_can_be_told_apart_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imported tickets: one reply a sample, so that no two are known to say the same."""
    monkeypatch.setenv("HAMR_CACHE", str(tmp_path))
    monkeypatch.setattr(scorer, "resolve_model", lambda name: tmp_path)
    pool = PoolConfig(role="reranker", prompt="reranker_short.en", finetune=ScorerTrainingConfig())
    exam = Exam(questions=[[1], [2]], values={}, labels=[False, False], overlap=[0.1, 0.2])
    lessons = Lessons(basis=[], exam=lambda: exam, examples=list)
    with pytest.raises(BadInput, match=r"pools\.reranker\.finetune.*data multigt"):
        scorer.prepare_scorer("reranker", pool, lambda: lessons, print)
