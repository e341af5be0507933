"""Validation of requests to resize a run's pools, without pools."""

from __future__ import annotations

import pytest

from hamr.cluster.placement import Node
from hamr.cluster.scaling import check_growth, with_replicas
from hamr.config.schema import Config
from hamr.errors import BadInput, CapacityError


def config(judge: dict | None = None, **sections: object) -> Config:
    pools = {
        "reranker": {"role": "reranker", "prompt": "reranker.en", "replicas": 2},
        "judge": {"role": "judge", "prompt": "judge.en"} | (judge or {}),
        "spare": {"role": "grader"},
    }
    return Config.model_validate({"data": {"type": "sage"}, "pools": pools} | sections)


def test_scaling_sets_replicas_or_the_autoscaling_minimum() -> None:
    c = config({"autoscaling": {"min_replicas": 1, "max_replicas": 4}})
    changed = with_replicas(c.pools, {"reranker": 5, "judge": 3}, c.rewards)
    assert changed["reranker"].replicas == 5
    bounds = changed["judge"].autoscaling
    assert bounds is not None
    assert (bounds.min_replicas, bounds.max_replicas) == (3, 4)
    assert c.pools["reranker"].replicas == 2, "the configuration is what it was"


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"rerankr": 2}, r"scale rerankr: 2: no such pool; available \(nearest first\): reranker, "),
        ({"judge": 0}, "scale judge: 0: the run needs it: rewards.consistency would have no scorer"),
        ({"judge": -1}, "the run needs it"),
        ({"spare": 0}, "a pool keeps one replica"),
        ({"judge": 5}, "scale judge: 5: beyond the bounds of pools.judge.autoscaling, 2 to 4"),
        ({"judge": 1}, "beyond the bounds"),
    ],
)
def test_impossible_request_is_reported_in_one_line(wanted: dict[str, int], says: str) -> None:
    c = config({"autoscaling": {"min_replicas": 2, "max_replicas": 4}})
    with pytest.raises(BadInput, match=says) as refused:
        with_replicas(c.pools, wanted, c.rewards)
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value)


def test_pool_users_follow_from_the_rewards() -> None:
    assert config().rewards.used_pools == {"consistency.reranker": "reranker", "consistency.judge": "judge"}
    alone = config(rewards={"consistency": {"mode": "reranker"}, "dialogue": {"weight": 1.0, "pool": "spare"}})
    assert alone.rewards.used_pools == {"consistency.reranker": "reranker", "dialogue.pool": "spare"}


def test_growth_needs_capacity_for_new_replicas_only() -> None:
    c = config()
    changed = with_replicas(c.pools, {"reranker": 5}, c.rewards)
    nodes = [Node(name="a", resources={"CPU": 1.0}), Node(name="b", resources={"CPU": 0.7})]
    check_growth(c.pools, changed, nodes, {"reranker": 2})
    with pytest.raises(CapacityError, match="scale reranker: 5: the cluster has room for 4: .* 0.5 CPU on one node"):
        check_growth(c.pools, changed, nodes[:1], {"reranker": 2})
    check_growth(c.pools, with_replicas(c.pools, {"reranker": 1}, c.rewards), [], {"reranker": 2})


def test_replicas_grown_by_load_need_no_further_capacity() -> None:
    c = config({"autoscaling": {"min_replicas": 1, "max_replicas": 4}})
    changed = with_replicas(c.pools, {"judge": 3}, c.rewards)
    check_growth(c.pools, changed, [], {"judge": 3})
    with pytest.raises(CapacityError, match="room for 2"):
        check_growth(c.pools, changed, [], {"judge": 2})
