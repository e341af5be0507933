"""Drawn questions of a step."""

from __future__ import annotations

import numpy as np
import pytest

from hamr.apps.plan.simulation import SimulatedResponse
from hamr.apps.plan.workload import Workload, WorkSpread


def counts(rounds: tuple[tuple[SimulatedResponse, ...], ...]) -> dict[str, int]:
    found: dict[str, int] = {}
    for response in (r for responses in rounds for r in responses):
        for pool, _ in (q for chain in response.chains for stage in chain for q in stage):
            found[pool] = found.get(pool, 0) + 1
    return found


def test_expected_question_counts_match_the_drawn_ones() -> None:
    workload = Workload(
        prompts=250, samples=16, cascaded_frac=0.5, first="reranker", first_questions=2.5, second="judge",
        second_questions=1.0, escalated_frac=0.4, side={"judge": 0.25},
    )  # fmt: skip
    assert workload.questions() == {"judge": 0.25 * 4000 + 800, "reranker": 5000}
    drawn = counts(workload.draw(seed=3))
    # Five standard errors of sums of independent choices.
    assert drawn["reranker"] == pytest.approx(5000, abs=5 * np.sqrt(4000 * 0.5 * (0.5 * 2.5**2 + 0.25)))
    assert drawn["judge"] == pytest.approx(1800, abs=5 * np.sqrt(4000 * (0.2 * 0.8 + 0.25 * 0.75)))


def test_only_escalated_replies_have_a_second_stage() -> None:
    workload = Workload(prompts=4, samples=4, first="reranker", second="judge", escalated_frac=0.5)
    (responses,) = workload.draw(seed=1)
    seconds = [chain[1] for r in responses for chain in r.chains]
    assert all([pool for pool, _ in chain[0]] == ["reranker"] for r in responses for chain in r.chains)
    assert {len(s) for s in seconds} == {0, 1}
    assert [r.group for r in responses] == [g for g in range(4) for _ in range(4)]


def test_same_seed_draws_the_same_workload() -> None:
    workload = Workload(
        prompts=8, samples=2, first="reranker", dropped_frac=0.3, max_rounds=3, length=WorkSpread(cv=0.5)
    )
    assert workload.draw(5) == workload.draw(5) != workload.draw(6)
    assert [sorted({r.group for r in responses}) for responses in workload.draw(5)] == [[*range(8)], [8, 9, 10], [11]]


@pytest.mark.parametrize("spread", [WorkSpread(), WorkSpread(cv=0.5), WorkSpread(observed=(1.0, 2.0, 9.0))])
def test_drawn_work_has_mean_one(spread: WorkSpread) -> None:
    drawn = spread.draw(np.random.default_rng(0), 40_000)
    assert np.mean(drawn) == pytest.approx(1.0, abs=0.02)
    assert min(drawn) > 0


def test_response_work_is_capped_at_the_longest() -> None:
    workload = Workload(prompts=100, samples=4, length=WorkSpread(cv=1.0), longest=1.5)
    (responses,) = workload.draw(0)
    works = [r.work for r in responses]
    assert max(works) == 1.5
    assert min(works) < 1.0


def test_workload_without_pools_has_no_questions() -> None:
    workload = Workload(prompts=2, samples=2)
    assert workload.questions() == {}
    assert counts(workload.draw(0)) == {}


def test_dropped_group_count_is_robust_to_rounding() -> None:
    assert Workload(prompts=100, samples=1, dropped_frac=0.07, max_rounds=2).rounds == (100, 7)
