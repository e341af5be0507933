"""Fitting a run: the fit recovers the known speeds of a simulated run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hamr.apps.plan.measured import (
    MeasuredResponse,
    MeasuredStep,
    RunSimulation,
    _Replays,
    mean_errors,
    pool_times,
    replay,
)
from hamr.apps.plan.overlap import Overlap
from hamr.apps.plan.simulation import Cluster, Service, Station, simulate

WORKERS = Station(replicas=1, slots=16, service=Service(fixed_s=1.0))
POOLS = dict.fromkeys(("reranker", "judge"), Station(replicas=1, slots=8, service=Service(fixed_s=1.0)))
RUN = RunSimulation(cluster=Cluster(rollout=WORKERS, pools=POOLS), first="reranker")
TRUE = Service(fixed_s=2.0, each_s=0.25)
MEAN_TOKENS = 20.0


def made_steps(n: int, seed: int = 0) -> list[MeasuredStep]:
    """Steps whose times a known cluster made: workers of TRUE, training at 3 s + 0.01 s a token, 0.7 s of sync."""
    rng = np.random.default_rng(seed)
    made = []
    for index in range(1, n + 1):
        groups = tuple(
            tuple(
                MeasuredResponse(
                    tokens=int(rng.integers(5, 36)),
                    cascaded=True,
                    calls=(("reranker", 0.0, 0.3), *((("judge", 0.1, 2.0),) if rng.random() < 0.3 else ())),
                )
                for _ in range(4)
            )
            for _ in range(int(rng.integers(2, 7)))
        )
        step = MeasuredStep(
            step=index, rollout_score_s=1.0, train_s=0.0, total_s=1.0,
            trained_tokens=float(sum(r.tokens for g in groups for r in g)), groups_dropped=0.0, rounds=(groups,),
        )  # fmt: skip
        played = simulate(
            replay(step, {"reranker": (0.3,), "judge": (2.0,)}, MEAN_TOKENS, "reranker"),
            Cluster(rollout=Station(replicas=1, slots=16, service=TRUE), pools=POOLS),
        )
        score, train = played.rollout_s + played.tail_s, 3 + 0.01 * step.trained_tokens
        values = {**vars(step), "rollout_score_s": score, "train_s": train, "total_s": score + train + 0.7}
        made.append(MeasuredStep(**values))
    return made


def test_fit_recovers_the_worker_speed() -> None:
    found = RUN.fit(made_steps(16))
    scale = found.mean_tokens / MEAN_TOKENS
    for n in (4, 16):
        assert found.rollout.seconds(n) == pytest.approx(TRUE.seconds(n) * scale, rel=0.1)
    assert found.train_fixed_s == pytest.approx(3.0, abs=0.01)
    assert found.train_token_s == pytest.approx(0.01, abs=1e-4)
    assert found.sync_s == pytest.approx(0.7)


def test_held_out_steps_are_predicted() -> None:
    made = RUN.compare(made_steps(16))
    assert [p.fitted for p in made] == [True] * 8 + [False] * 8
    assert max(mean_errors(made, fitted=False)) < 0.05
    assert len({round(p.measured_s, 3) for p in made}) == 16


def test_too_few_steps_raise_an_error() -> None:
    with pytest.raises(ValueError, match="3 steps are too few"):
        RUN.compare(made_steps(3))


def test_pool_times_count_only_asked_questions() -> None:
    times = pool_times(made_steps(4))
    assert set(times) == {"judge", "reranker"}
    assert times["judge"].mean_s == pytest.approx(2.0)
    assert len(times["reranker"].service_s) == sum(len(s.responses) for s in made_steps(4))
    assert times["judge"].queue_quantile(0.99) == pytest.approx(0.1)


def test_outlier_step_does_not_change_the_fit() -> None:
    steps = made_steps(16)
    slow = {**vars(steps[3]), "train_s": 90.0, "total_s": steps[3].total_s + 90.0}
    found = RUN.fit([*steps[:3], MeasuredStep(**slow), *steps[4:]])
    assert found.train_s(300.0, 0.0) == pytest.approx(6.0, abs=0.05)
    assert found.sync_s == pytest.approx(0.7)


def test_steps_without_training_are_fitted() -> None:
    steps = made_steps(16)
    idle = replace(steps[3], trained_tokens=0.0, train_s=0.0, total_s=steps[3].total_s - steps[3].train_s)
    assert RUN.fit([*steps[:3], idle, *steps[4:]]).train_s(300.0, 0.0) == pytest.approx(6.0, abs=0.1)
    never = [replace(step, trained_tokens=0.0, train_s=0.0, total_s=step.total_s - step.train_s) for step in steps]
    assert RUN.fit(never).train_s(300.0, 0.0) == 0.0


@pytest.mark.parametrize("age", [1, 2])
def test_steps_that_overlap_are_fitted_and_predicted(age: int) -> None:
    how = Overlap(batch=4, max_policy_age=age, oversample=1.0, in_flight=True, most=12)
    steps = make_overlapped(how, 24)
    found = replace(RUN, overlap=how).fit(steps)
    assert found.rollout.seconds(16) == pytest.approx(TRUE.seconds(16) * found.mean_tokens / MEAN_TOKENS, rel=0.15)
    made = replace(RUN, overlap=how).compare(steps)
    assert max(mean_errors(made, fitted=False)) < 0.1
    assert sum(p.measured_score_s > 0.5 for p in made) > 4, "steps wait"


def test_generation_on_the_same_processors_slows_training_down() -> None:
    how = Overlap(batch=4, max_policy_age=2, oversample=1.0, in_flight=True, most=12)
    run, steps = replace(RUN, overlap=how), make_overlapped(how, 24)
    slowed = []
    for step, (_, generated) in zip(steps, run.tokens(steps), strict=True):
        more = 0.02 * generated
        slowed.append(replace(step, train_s=step.train_s + more, total_s=step.total_s + more))
    assert run.fit(slowed).train_s(200.0, 300.0) - run.fit(steps).train_s(200.0, 300.0) == pytest.approx(6.0, rel=0.1)
    assert RUN.fit(slowed).generated_token_s == 0.0, "nothing is generated meanwhile where steps do not overlap"


def make_overlapped(how: Overlap, n: int) -> list[MeasuredStep]:
    """Steps of four groups, of which the trainer of a known cluster has less work than the workers."""
    taken = [replace(step, rounds=((step.rounds[0] * 2)[:4],), signal=(True,) * 4) for step in made_steps(n)]
    trained = [1.0 + 0.01 * step.trained_tokens for step in taken]
    known = _Replays(replace(RUN, overlap=how), taken, taken, MEAN_TOKENS)
    waits = known.waits(TRUE, trained, 0.7)
    return [
        replace(step, rollout_score_s=wait, train_s=train_s, total_s=wait + train_s + 0.7)
        for step, wait, train_s in zip(taken, waits, trained, strict=True)
    ]
