"""Steps that overlap: hand-computed times, and the times of the real groups in flight on a simulated clock."""

from __future__ import annotations

import asyncio
from itertools import cycle

import pytest

from benchmarks import simulated_time
from hamr.apps.plan.overlap import Overlap, SimulatedGroup, simulate_overlap
from hamr.apps.plan.simulation import Cluster, Service, Simulated, SimulatedResponse, Station
from hamr.data.stream import PromptStream
from hamr.experience import Draw, Experience
from hamr.types import Reference, Reply, RolloutGroup, ServiceSample


def overlap(age: int = 1, batch: int = 1, **changes: object) -> Overlap:
    given = {"oversample": 1.0, "in_flight": True, "most": 100 * batch, **changes}
    return Overlap(batch=batch, max_policy_age=age, **given)  # type: ignore[arg-type]


def play_steps(
    works: list[float], how: Overlap, *, workers: int = 1, train_s: float, sync_s: float = 0.0, steps: int = 4,
    without_signal: tuple[int, ...] = (),
) -> list[Simulated]:  # fmt: skip
    """Simulate groups of one response, on workers with one slot that need a second per unit of work."""
    station = Station(replicas=workers, slots=1, service=Service(fixed_s=1.0))
    groups: list[SimulatedGroup] = [
        ((SimulatedResponse(group=i, work=work),), i not in without_signal) for i, work in enumerate(works)
    ]
    return simulate_overlap(groups, how, Cluster(rollout=station, pools={}, sync_s=sync_s), [train_s] * steps)


def waits(*args: object, **how: object) -> list[float]:
    return [step.rollout_s for step in play_steps(*args, **how)]  # type: ignore[arg-type]


@pytest.mark.parametrize(("train_s", "expected"), [(3.0, [2, 0, 0, 0]), (1.0, [2, 1, 1, 1])])
def test_step_takes_the_longer_of_generation_and_training(train_s: float, expected: list[float]) -> None:
    assert waits([2.0], overlap(), train_s=train_s) == expected


def test_higher_age_hides_generation_that_varies() -> None:
    # 1 s and 9 s in turn, 5 s of training: on average both take equally long.
    works = [1.0, 9.0]
    assert waits(works, overlap(1), train_s=5.0, steps=6) == [1, 4, 0, 4, 0, 4]
    assert waits(works, overlap(2), train_s=5.0, steps=6) == [1, 4, 0, 0, 0, 0]


def test_group_without_signal_is_replaced_at_once() -> None:
    assert waits([1.0, 1.0, 1.0, 1.0], overlap(), train_s=1.0, without_signal=(1,)) == [1, 1, 0, 0]


def test_step_is_smaller_once_enough_groups_have_ended() -> None:
    how = overlap(batch=2, most=3)
    assert waits([1.0], how, train_s=1.0, without_signal=(0,), steps=2) == [3, 3]


def test_surplus_is_aborted_and_nothing_is_generated_during_training() -> None:
    how = overlap(0, oversample=2.0)
    assert waits([8.0, 1.0, 5.0, 2.0], how, workers=2, train_s=9.0) == [1, 2, 1, 2]


def test_group_that_got_too_old_is_replaced() -> None:
    # The second group ends at 6.5 s, half a second after the fourth step has begun to wait.
    works = [1.0, 6.5, 1.0, 1.0, 1.0, 1.0]
    assert waits(works, overlap(1), workers=2, train_s=1.0, steps=5) == [1, 1, 1, 1, 0]
    assert waits(works, overlap(3), workers=2, train_s=1.0, steps=4)[3] == 0


def test_responses_end_before_weights_unless_they_are_loaded_in_flight() -> None:
    [first, *_] = play_steps([2.0, 9.0], overlap(in_flight=False), workers=2, train_s=1.0, sync_s=0.5)
    assert (first.rollout_s, first.sync_s, first.step_s) == (2.0, 6.5, 9.5)


def test_queued_groups_start_after_the_weights_unless_they_are_loaded_in_flight() -> None:
    [first, *_] = play_steps([2.0, 9.0, 9.0], overlap(2, in_flight=False), train_s=1.0, sync_s=0.5)
    assert first.sync_s == 8.5


@pytest.mark.parametrize(
    ("age", "changes", "dropped"),
    [
        (1, {}, ()),
        (2, {}, ()),
        (4, {}, ()),
        (0, {"oversample": 1.5}, ()),
        (1, {"oversample": 0.5}, ()),
        (1, {"most": 3}, (1, 2, 4, 7, 8, 9, 14)),
        (2, {"most": 3}, tuple(range(0, 23, 2))),
        (0, {"most": 3, "oversample": 1.5}, (1, 2, 4, 7)),
        (2, {"concurrent": 2}, (1, 2)),
    ],
)
def test_times_are_those_of_the_real_groups_in_flight(age: int, changes: dict[str, int], dropped: tuple[int]) -> None:
    works = [float(1 + (7 * i) % 11) for i in range(23)]
    how = overlap(age, 3, **changes)
    found = play_steps(works, how, workers=2, train_s=6.0, sync_s=0.5, steps=8, without_signal=dropped)
    expected = simulated_time.run(real(works, how, 2, 6.0, 0.5, 8, dropped))
    assert [step.rollout_s for step in found] == pytest.approx(expected)


async def real(
    works: list[float], how: Overlap, workers: int, train_s: float, sync_s: float, steps: int, dropped: tuple[int]
) -> list[float]:
    """Return the waiting times of the steps of a loop with `Experience`."""
    loop, free, left = asyncio.get_running_loop(), asyncio.Semaphore(workers), cycle(enumerate(works))
    reply = (Reference(action=Reply(content="ok")),)
    samples = [
        ServiceSample(id=f"s{i}", ticket={}, policy="", tools=(), history=(), references=reply) for i in range(50)
    ]

    started: dict[int, int] = {}
    refused: list[RolloutGroup] = []

    async def produce(draw: Draw) -> RolloutGroup:
        number, work = next(left)
        async with free:
            await asyncio.sleep(work)
        group = RolloutGroup(sample=draw.sample, rollouts=(), records=())
        started[id(group)] = draw.step
        if number in dropped:
            refused.append(group)
        return group

    groups = Experience(
        produce, lambda group: not any(group is one for one in refused), PromptStream(samples, seed=0),
        batch=how.batch, max_policy_age=how.max_policy_age, oversample=how.oversample, concurrent=how.concurrent,
    )  # fmt: skip
    waited, taken = [], []
    for step in range(1, steps + 1):
        began = loop.time()
        wanted, ended = how.batch, 0
        groups.take_dropped()
        while wanted and ended < how.most:  # as in Controller.take
            ready, _, lost = await groups.take(step, wanted, how.most - ended)
            taken += ready  # ids stay unique
            fresh = sum(step - started[id(group)] <= how.max_policy_age for group in ready)
            groups.reject(len(ready) - fresh)
            wanted -= fresh
            ended += fresh + lost
        if not how.max_policy_age:
            groups.abort()
        waited.append(loop.time() - began)
        await asyncio.sleep(train_s + sync_s)
        groups.release()
    await groups.close()
    return waited
