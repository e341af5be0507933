from __future__ import annotations

from pathlib import Path

import pytest

from hamr.apps.shared.pools_up import pools_of, with_starts
from hamr.config.load import load_config


def test_pool_is_prepared_with_its_training_base():
    config = load_config(["pools=cpu_small"])
    judge = {"judge": config.pools["judge"]}
    assert with_starts(config, judge) == {**judge, "reranker": config.pools["reranker"]}
    plain = {"reranker": config.pools["reranker"]}
    assert with_starts(config, plain) == plain


def test_two_jobs_of_one_kind_have_separate_pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert pools_of("0", Path("a/0")) != pools_of("0", Path("b/0")), "of two sweeps"
    assert pools_of("0", Path("a/0")) == pools_of("0", tmp_path / "a" / "0"), "when it goes on"
