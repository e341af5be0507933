"""Pool sizing, against exhaustive search and Little's law."""

from __future__ import annotations

import pytest

from hamr.apps.plan.simulation import ROLLOUT, Cluster, Service, Station, simulate
from hamr.apps.plan.sizing import Study
from hamr.apps.plan.workload import Workload, WorkSpread

WORKLOAD = Workload(
    prompts=16, samples=8, first="reranker", first_questions=3.0, second="judge", escalated_frac=0.4,
    length=WorkSpread(cv=0.5), service={"judge": WorkSpread(cv=0.5)},
)  # fmt: skip
CLUSTER = Cluster(
    rollout=Station(replicas=4, slots=32, service=Service(fixed_s=20.0)),
    pools={
        "reranker": Station(replicas=1, slots=8, service=Service(fixed_s=0.2)),
        "judge": Station(replicas=1, slots=2, service=Service(fixed_s=6.0)),
    },
    train_s=10.0,
    sync_s=1.0,
)


@pytest.fixture(scope="module")
def study() -> Study:
    return Study(WORKLOAD, CLUSTER, draws=2)


def test_sized_pools_meet_the_goal_minimally(study: Study) -> None:
    goal = study.ideal().step_s * 1.05
    found = study.size_pools(goal, most=64)
    assert study.play(found).step_s <= goal
    judges = found.pools["judge"].replicas
    assert judges > 1
    assert study.play(found.with_replicas(judge=judges - 1)).step_s > goal


def test_pools_grow_if_they_suffice_only_separately() -> None:
    work = Workload(
        prompts=8, samples=4, first="reranker", first_questions=3.0, second="judge", escalated_frac=0.8,
        length=WorkSpread(cv=0.5),
    )  # fmt: skip
    cluster = Cluster(
        rollout=Station(replicas=2, slots=16, service=Service(fixed_s=5.0)),
        pools={
            name: Station(replicas=1, slots=2, service=Service(fixed_s=s))
            for name, s in (("reranker", 2.0), ("judge", 6.0))
        },
        train_s=1.0,
        sync_s=1.0,
    )
    both = Study(work, cluster, draws=1)
    goal = both.ideal().step_s * 1.05
    alone = {name: both._alone(name, goal, 64) for name in cluster.pools}
    assert both.play(cluster.with_replicas(**alone)).step_s > goal
    assert both.play(both.size_pools(goal, most=64)).step_s <= goal


def test_required_concurrency_follows_littles_law(study: Study) -> None:
    assert study.busy("judge") == pytest.approx(128 * 0.4 * 6.0 / (2 * study.ideal().rollout_s))


def test_looser_goal_needs_fewer_replicas(study: Study) -> None:
    ideal = study.ideal().step_s
    sizes = [study.size_pools(goal, most=64).pools["judge"].replicas for goal in (ideal * 1.01, ideal * 1.2, ideal * 3)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]


def test_search_stops_at_its_bound(study: Study) -> None:
    found = study.size_pools(study.ideal().step_s * 1.01, most=2)
    assert found.pools["judge"].replicas == 2
    assert study.play(found).step_s > study.ideal().step_s * 1.01


def test_bottleneck_has_the_largest_savings(study: Study) -> None:
    short = study.savings(CLUSTER)
    assert max(short, key=lambda part: short[part]) == "judge"
    plenty = study.savings(CLUSTER.with_replicas(judge=64, reranker=64))
    assert plenty["judge"] == pytest.approx(0.0, abs=0.2)
    assert (plenty["training"], plenty["sync"]) == (10.0, 1.0)
    slow = Study(WORKLOAD, CLUSTER.with_replicas(rollout=1), draws=1).savings(
        CLUSTER.with_replicas(rollout=1, judge=64, reranker=64)
    )
    assert slow[ROLLOUT] > 0


def test_step_time_is_bounded_by_the_deadline(study: Study) -> None:
    bounded = Cluster(**{**vars(CLUSTER), "deadline_s": 5.0})
    played = Study(WORKLOAD, bounded, draws=1).play(bounded)
    assert played.late > 0
    assert played.tail_s <= 5.0
    assert study.slowest_s(bounded) == study.play(CLUSTER).slowest_s > 5.0, "what a reward would have taken"


def test_slowest_reward_is_the_maximum_over_steps(study: Study) -> None:
    slowest = [simulate(step, CLUSTER).slowest_s for step in study.steps]
    assert study.play(CLUSTER).slowest_s == max(slowest) > min(slowest)


def test_useful_replicas_are_limited_by_the_group_count() -> None:
    wide = CLUSTER.with_replicas()
    few = Workload(prompts=16, samples=2, first="reranker", second="judge", escalated_frac=0.1)
    roomy = Cluster(**{**vars(wide), "pools": {n: Station(**{**vars(s), "slots": 64}) for n, s in wide.pools.items()}})
    assert Study(few, roomy, draws=1).limit == {"reranker": 16, "judge": 16}
