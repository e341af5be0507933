from __future__ import annotations

from hamr.config.load import load_config
from hamr.jobs.pools_up import with_starts


def test_a_pool_is_prepared_with_the_one_that_its_training_starts_from():
    config = load_config(["pools=cpu_small"])
    judge = {"judge": config.pools["judge"]}
    assert with_starts(config, judge) == {**judge, "reranker": config.pools["reranker"]}
    plain = {"reranker": config.pools["reranker"]}
    assert with_starts(config, plain) == plain
