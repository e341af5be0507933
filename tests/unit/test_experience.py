"""Groups in flight, and the asynchronous step of the controller, on scripted fakes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.cascade.rescoring import settle
from hamr.config.algorithm import AlgorithmConfig, DynamicSamplingConfig
from hamr.config.faults import UnscoredConfig
from hamr.controller import Controller
from hamr.data.stream import PromptStream
from hamr.errors import EngineDied, TooManyUnscored
from hamr.experience import Draw, Experience
from hamr.protocols import GenerationRequest
from hamr.types import (
    Audit,
    Component,
    JudgeTimeout,
    JudgeUnavailable,
    Outcome,
    Reply,
    RewardCorrection,
    RewardRecord,
    Rollout,
    RolloutGroup,
    SampleKey,
    Scored,
    ServiceSample,
    Stale,
    TrainBatch,
    VersionSpan,
)
from tests.factories import ScriptedRewarder, ScriptedTrainer, build_controller, by_index, sample

SAMPLES = [sample(i) for i in range(20)]


async def settle_tasks() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@dataclass
class Producer:
    """Ends the group of a draw when the test says so."""

    draws: list[Draw] = field(default_factory=list)
    ends: dict[int, asyncio.Future[RolloutGroup]] = field(default_factory=dict)

    async def __call__(self, draw: Draw) -> RolloutGroup:
        self.draws.append(draw)
        self.ends[len(self.draws) - 1] = end = asyncio.get_running_loop().create_future()
        return await end

    def end(self, *numbers: int, failed: bool = False) -> None:
        for number in numbers:
            key = SampleKey(run="r", step=1, prompt=str(number), sample=0)
            records = (RewardRecord(key=key, total=JudgeUnavailable(detail="away")),) if failed else ()
            self.ends[number].set_result(RolloutGroup(sample=self.draws[number].sample, rollouts=(), records=records))


def experience(producer: Producer, *, keeps: Callable[[RolloutGroup], bool] = lambda g: True, **given) -> Experience:
    given = {"batch": 2, "max_policy_age": 1, **given}
    return Experience(producer, keeps, PromptStream(SAMPLES, seed=0), **given)


def test_resumed_run_gives_aborted_draws_new_keys():
    async def run() -> None:
        producer = Producer()
        unfinished = [{"step": 2, "prompt": SAMPLES[3].id, "attempt": 2, "aborted": True, "dropped": False}]
        groups = experience(producer, unfinished=unfinished)
        taking = asyncio.create_task(groups.take(2, 2, 2))
        await settle_tasks()
        assert (producer.draws[0].sample.id, producer.draws[0].step, producer.draws[0].attempt) == (SAMPLES[3].id, 2, 4)
        taking.cancel()
        await groups.close()

    asyncio.run(run())


def ids(groups: Sequence[RolloutGroup]) -> list[str]:
    return [group.sample.id for group in groups]


def test_drop_of_an_interrupted_run_is_not_counted_again():
    async def run() -> None:
        producer = Producer()
        groups = experience(producer, keeps=lambda g: g.sample.id not in ids_of(producer, 2, 3))
        taking = asyncio.create_task(groups.take(1, 2, 2))
        await settle_tasks()
        producer.end(0, 1)
        await taking
        producer.end(2, 3)
        await settle_tasks()
        state = json.loads(json.dumps(groups.state()))
        assert [entry["dropped"] for entry in state] == [True, True, False, False]
        await groups.close()

        again = Producer()
        order = PromptStream(SAMPLES, seed=0)
        order.take(6)
        resumed = Experience(
            again, lambda g: g.sample.id not in ids_of(again, 0, 1), order, batch=2, max_policy_age=1, unfinished=state
        )
        taking = asyncio.create_task(resumed.take(2, 2, 2))
        await settle_tasks()
        again.end(0, 1)
        await settle_tasks()
        assert not taking.done(), "the step has its whole limit left"
        assert [entry["dropped"] for entry in resumed.state()][:2] == [True, True], "until they are recorded"
        again.end(2, 3)
        ready, dropped, counted = await taking
        assert (ids(ready), ids(dropped), counted) == (ids_of(again, 2, 3), ids_of(again, 0, 1), 0)
        assert resumed.take_dropped() == []
        await resumed.close()

    asyncio.run(run())


def test_group_that_has_just_ended_is_surplus_not_stale():
    async def run() -> None:
        producer = Producer()
        groups = experience(producer, max_policy_age=0, oversample=1.5)
        taking = asyncio.create_task(groups.take(1, 2, 100))
        await settle_tasks()
        producer.end(0, 1)
        await taking
        producer.end(2)
        while not any(task.done() for task in groups._running):
            await asyncio.sleep(0)
        ready, cancelled = groups.abort()
        assert (ids(ready), cancelled) == (ids_of(producer, 2), 0)
        await settle_tasks()
        assert groups.open_draws == []
        await groups.close()

    asyncio.run(run())


def test_groups_in_flight_fill_the_bound_and_no_more():
    async def run() -> None:
        producer = Producer()
        groups = experience(producer)
        taking = asyncio.create_task(groups.take(1, 2, 100))
        await settle_tasks()
        assert len(producer.draws) == 4  # (1 + 1) x 2
        producer.end(0, 1)
        assert ids((await taking)[0]) == ids_of(producer, 0, 1)
        await settle_tasks()
        assert len(producer.draws) == 4  # the taken ones are in training
        groups.release()
        await settle_tasks()
        assert len(producer.draws) == 6
        await groups.close()

    asyncio.run(run())


def ids_of(producer: Producer, *numbers: int) -> list[str]:
    return [producer.draws[number].sample.id for number in numbers]


def test_oldest_ready_groups_come_first_without_waiting_for_slow_ones():
    async def run() -> None:
        producer = Producer()
        groups = experience(producer)
        taking = asyncio.create_task(groups.take(1, 2, 100))
        await settle_tasks()
        producer.end(3, 2)
        assert ids((await taking)[0]) == ids_of(producer, 2, 3)
        groups.release()
        await settle_tasks()
        producer.end(4, 1, 0)
        await settle_tasks()
        assert ids((await groups.take(2, 2, 100))[0]) == ids_of(producer, 0, 1)
        await groups.close()

    asyncio.run(run())


def test_dropped_group_is_replaced_at_once_and_returned_with_the_next_batch():
    async def run() -> None:
        producer = Producer()
        groups = experience(producer, keeps=lambda g: g.sample.id != producer.draws[0].sample.id)
        taking = asyncio.create_task(groups.take(1, 2, 100))
        await settle_tasks()
        producer.end(0)
        await settle_tasks()
        assert len(producer.draws) == 5
        producer.end(1, 2)
        ready, dropped, _ = await taking
        assert (ids(ready), ids(dropped)) == (ids_of(producer, 1, 2), ids_of(producer, 0))
        await groups.close()

    asyncio.run(run())


def test_batch_is_smaller_once_enough_groups_have_ended_without_signal():
    async def run() -> None:
        producer = Producer()
        groups = experience(producer, keeps=lambda g: g.sample.id == producer.draws[0].sample.id)
        taking = asyncio.create_task(groups.take(1, 2, 3))
        await settle_tasks()
        producer.end(0, 1, 2)
        ready, dropped, _ = await taking
        assert (len(ready), len(dropped)) == (1, 2)
        await groups.close()

    asyncio.run(run())


def test_resumed_run_starts_with_the_groups_that_no_step_took():
    async def run() -> None:
        producer = Producer()
        groups = experience(producer, keeps=lambda g: g.sample.id != producer.draws[1].sample.id)
        taking = asyncio.create_task(groups.take(1, 1, 100))
        await settle_tasks()
        producer.end(0, 1, 3)
        await taking
        producer.end(4)
        await settle_tasks()
        state = groups.state()  # 2 and 5 are running, 3 and 4 are ready, 0 is in training, 1 was returned as dropped
        assert [draw["prompt"] for draw in state] == ids_of(producer, 2, 3, 4)
        await groups.close()
        again = Producer()
        resumed = experience(again, unfinished=state)
        taking = asyncio.create_task(resumed.take(2, 1, 100))
        await settle_tasks()
        assert [(d.step, d.sample.id, d.attempt) for d in again.draws[:3]] == [
            (draw["step"], draw["prompt"], draw["attempt"]) for draw in state
        ]
        assert again.draws[3].step == 2
        taking.cancel()
        await resumed.close()

    asyncio.run(run())


def test_error_of_a_group_ends_the_step():
    async def run() -> None:
        producer = Producer()
        groups = experience(producer)
        taking = asyncio.create_task(groups.take(1, 2, 100))
        await settle_tasks()
        producer.ends[2].set_exception(EngineDied("gone"))
        with pytest.raises(EngineDied, match="gone"):
            await taking
        await groups.close()

    asyncio.run(run())


def test_cancellation_from_outside_ends_the_step():
    """For example a rewarder that raises CancelledError. The group would never end."""

    async def run() -> None:
        producer = Producer()
        groups = experience(producer)
        taking = asyncio.create_task(groups.take(1, 2, 100))
        await settle_tasks()
        producer.ends[2].cancel()
        with pytest.raises(RuntimeError, match="was cancelled although it was not aborted"):
            await asyncio.wait_for(taking, 1)
        await groups.close()

    asyncio.run(run())


def test_error_in_the_choice_of_groups_ends_the_step():
    def keeps(group: RolloutGroup) -> bool:
        raise ValueError("no records")

    async def run() -> None:
        producer = Producer()
        groups = experience(producer, keeps=keeps)
        taking = asyncio.create_task(groups.take(1, 2, 100))
        await settle_tasks()
        producer.end(0)
        with pytest.raises(ValueError, match="no records"):
            await asyncio.wait_for(taking, 1)
        await groups.close()

    asyncio.run(run())


def test_groups_under_way_are_bounded_by_concurrent():
    async def run() -> None:
        producer = Producer()
        groups = experience(producer, concurrent=2)
        taking = asyncio.create_task(groups.take(1, 3, 100))
        await settle_tasks()
        assert groups.in_flight == len(producer.draws) == 2
        producer.end(1)
        await settle_tasks()
        assert groups.in_flight == 2 and len(producer.draws) == 3
        producer.end(0, 2)
        await taking
        assert groups.in_flight == 1 and len(producer.draws) == 4, "the bound on the age is 4 groups"
        await groups.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("age", "oversample", "started"),
    [(1, 1.0, [4, 6, 6]), (2, 1.0, [6, 6, 6]), (0, 1.5, [3, 6, 9]), (1, 0.5, [3, 5, 6])],
)
def test_groups_that_no_step_can_take_do_not_start(age: int, oversample: float, started: list[int]):
    async def run() -> None:
        producer, found = Producer(), []
        groups = experience(producer, max_policy_age=age, oversample=oversample, steps=3)
        for step in (1, 2, 3):
            taking = asyncio.create_task(groups.take(step, 2, 100))
            await settle_tasks()
            found.append(len(producer.draws))
            producer.end(*(number for number, end in producer.ends.items() if not end.done()))
            await taking
            if not age:
                groups.abort()
            if step < 3:
                groups.release()
                await settle_tasks()
        assert found == started and not groups.in_flight
        await groups.close()

    asyncio.run(run())


def test_groups_under_way_are_drawn_again_after_a_change_of_the_scorers():
    async def run() -> None:
        producer = Producer()
        groups = experience(producer)
        taking = asyncio.create_task(groups.take(1, 2, 100))
        await settle_tasks()
        producer.end(1)
        await settle_tasks()
        with groups.hold():
            await settle_tasks()
            assert not groups.in_flight and len(producer.draws) == 4
        await settle_tasks()
        assert ids_of(producer, 4, 5, 6) == ids_of(producer, 0, 2, 3) and groups.in_flight == 3
        keys = [(d.step, d.sample.id, d.attempt) for d in producer.draws]
        assert len(set(keys)) == len(keys)
        producer.end(4)
        assert ids((await taking)[0]) == ids_of(producer, 1, 4)
        await groups.close()

    asyncio.run(run())


def test_ready_groups_with_failures_are_drawn_again_after_a_refit():
    """Their other responses have rewards of the scorers before."""

    async def run() -> None:
        producer = Producer()
        groups = experience(producer, batch=3)
        taking = asyncio.create_task(groups.take(1, 3, 100))
        await settle_tasks()
        producer.end(0)
        producer.end(1, failed=True)
        await settle_tasks()
        with groups.hold():
            await settle_tasks()
        await settle_tasks()
        assert ids_of(producer, *range(6, 11)) == ids_of(producer, 2, 3, 4, 5, 1)
        producer.end(6, 10)
        assert ids((await taking)[0]) == ids_of(producer, 0, 2, 1)
        await groups.close()

    asyncio.run(run())


def test_group_that_fails_just_before_a_refit_is_drawn_again():
    """It has ended, but the callback that makes it ready has not run."""

    async def run() -> None:
        producer = Producer()
        groups = experience(producer, batch=3)
        taking = asyncio.create_task(groups.take(1, 3, 100))
        await settle_tasks()
        task = next(iter(groups._running))
        producer.end(0, failed=True)
        while not task.done():
            await asyncio.sleep(0)
        assert task in groups._running
        with groups.hold():
            await settle_tasks()
        await settle_tasks()
        assert ids_of(producer, *range(6, 12)) == ids_of(producer, 1, 2, 3, 4, 5, 0)
        producer.end(6, 7, 11)
        assert ids((await taking)[0]) == ids_of(producer, 1, 2, 0)
        await groups.close()

    asyncio.run(run())


@given(st.lists(st.integers(0, 5), max_size=60), st.integers(1, 3), st.integers(1, 3))
def test_keys_are_unique_and_capacity_is_used_up(ends, batch, age):
    """A step trains as soon as `batch` groups are ready; groups end in any order. The capacity of AReaL is then 0:
    (max_policy_age + version + 1) x batch - accepted - running, where accepted ones are ready or were taken."""

    async def run() -> None:
        producer = Producer()
        groups = Experience(producer, lambda g: True, PromptStream(SAMPLES[:3], 0), batch=batch, max_policy_age=age)
        step, ended, taken = 1, set(), 0
        taking = asyncio.create_task(groups.take(step, batch, 10**6))
        await settle_tasks()
        for choice in ends:
            running = sorted(set(producer.ends) - ended)
            if not running:
                break
            assert (age + step) * batch - taken - len(groups.state()) == 0
            assert len(running) == groups.in_flight
            number = running[choice % len(running)]
            ended.add(number)
            producer.end(number)
            await settle_tasks()
            if taking.done():
                taken += batch
                assert (age + step) * batch - taken - len(groups.state()) == 0, "nothing starts during training"
                groups.release()
                step += 1
                taking = asyncio.create_task(groups.take(step, batch, 10**6))
                await settle_tasks()
        keys = [(d.step, d.sample.id, d.attempt) for d in producer.draws]
        assert len(keys) == len(set(keys))
        taking.cancel()
        await groups.close()

    asyncio.run(run())


def test_oversampled_step_aborts_the_groups_under_way_and_draws_them_again():
    async def run() -> None:
        producer = Producer()
        groups = experience(producer, max_policy_age=0, oversample=2.5)
        taking = asyncio.create_task(groups.take(1, 2, 100))
        await settle_tasks()
        assert len(producer.draws) == 5
        producer.end(3, 1, 2)
        assert ids((await taking)[0]) == ids_of(producer, 1, 2)
        surplus, aborted = groups.abort()
        assert (ids(surplus), aborted) == (ids_of(producer, 3), 2)
        assert [draw["prompt"] for draw in groups.state()] == ids_of(producer, 0, 4)
        groups.release()
        await settle_tasks()
        assert len(producer.draws) == 5, "nothing starts before the next step"
        taking = asyncio.create_task(groups.take(2, 2, 100))
        await settle_tasks()
        assert ids_of(producer, 5, 6) == ids_of(producer, 0, 4)
        assert len(producer.draws) == 10 and all(draw.step == 2 for draw in producer.draws[5:])
        taking.cancel()
        await groups.close()

    asyncio.run(run())


def test_group_that_ends_as_it_is_aborted_is_not_drawn_again():
    async def run() -> None:
        producer = Producer()
        groups = experience(producer, batch=1, max_policy_age=0, oversample=2)
        taking = asyncio.create_task(groups.take(1, 1, 100))
        await settle_tasks()
        producer.end(0)
        await taking
        producer.end(1)
        await asyncio.sleep(0)  # the task has ended, and its callback has not run
        groups.abort()
        await settle_tasks()
        assert len(groups.state()) == len({draw["prompt"] for draw in groups.state()}) <= 1
        await groups.close()

    asyncio.run(run())


def test_step_starts_though_the_aborted_groups_have_not_ended_yet():
    async def run() -> None:
        producer = Producer()
        groups = experience(producer, max_policy_age=0, oversample=1.5, keeps=lambda g: False)
        taking = asyncio.create_task(groups.take(1, 2, 1))
        await settle_tasks()
        producer.end(0)
        await taking
        groups.abort()
        groups.release()
        taking = asyncio.create_task(groups.take(2, 2, 1))  # no turn of the event loop since the cancellations
        await settle_tasks()
        assert len(producer.draws) > 4
        producer.end(len(producer.draws) - 1)
        await asyncio.wait_for(taking, 1)
        await groups.close()

    asyncio.run(run())


def test_aborted_group_that_ends_in_spite_of_its_cancellation_is_not_taken():
    async def run() -> None:
        go, draws = asyncio.Event(), []

        async def produce(draw: Draw) -> RolloutGroup:
            draws.append(draw)
            with contextlib.suppress(asyncio.CancelledError):  # as asyncio.wait_for may do in Python 3.11
                await go.wait()
            return RolloutGroup(sample=draw.sample, rollouts=(), records=())

        groups = Experience(
            produce, lambda g: True, PromptStream(SAMPLES, seed=0), batch=1, max_policy_age=0, oversample=2.0
        )
        taking = asyncio.create_task(groups.take(1, 1, 100))
        await settle_tasks()
        assert groups.abort() == ([], 2)
        taking.cancel()
        await settle_tasks()
        assert [draw["prompt"] for draw in groups.state()] == [draw.sample.id for draw in draws]
        await groups.close()

    asyncio.run(run())


def test_closed_experience_starts_no_group_in_place_of_a_dropped_one():
    async def run() -> None:
        producer = Producer()
        groups = experience(producer, keeps=lambda g: False)
        taking = asyncio.create_task(groups.take(1, 2, 100))
        await settle_tasks()
        producer.end(0)
        await asyncio.sleep(0)  # the task has ended, and its callback has not run
        await groups.close()
        assert len(producer.draws) == 4 and not groups.in_flight
        taking.cancel()

    asyncio.run(run())


def test_groups_that_start_after_a_step_have_keys_of_the_next():
    """A run that resumes after the step deletes the records of later ones, so it never keeps theirs by mistake."""

    async def run() -> None:
        producer = Producer()
        groups = experience(producer, keeps=lambda g: g.sample.id != producer.draws[2].sample.id)
        taking = asyncio.create_task(groups.take(1, 2, 100))
        await settle_tasks()
        producer.end(0, 1)
        await taking
        groups.release()
        await settle_tasks()
        state = groups.state()
        producer.end(2)  # dropped while the checkpoint of step 1 is written
        await settle_tasks()
        assert [draw.step for draw in producer.draws] == [1, 1, 1, 1, 2, 2, 2]
        await groups.close()
        again = Producer()
        resumed = experience(again, batch=20, unfinished=state)
        taking = asyncio.create_task(resumed.take(2, 20, 100))
        await settle_tasks()
        keys = [(d.step, d.sample.id, d.attempt) for d in again.draws]
        assert len(set(keys)) == len(keys) == 40
        taking.cancel()
        await resumed.close()

    asyncio.run(run())


@pytest.mark.parametrize("surplus", ["abort", "keep"])
def test_resumed_run_draws_what_an_uninterrupted_one_draws(surplus: str):
    """A step takes the two youngest groups, so that others are left."""
    age, oversample = DynamicSamplingConfig(oversample=2.5, surplus=surplus).bounds(0)

    def keys(producer: Producer) -> list[tuple[int, str, int]]:
        return [(draw.step, draw.sample.id, draw.attempt) for draw in producer.draws]

    async def play(groups: Experience, producer: Producer, step: int) -> set[str]:
        taking = asyncio.create_task(groups.take(step, 2, 100))
        await settle_tasks()
        producer.end(*[number for number, end in producer.ends.items() if not end.done()][-2:])
        await taking
        redrawn = groups.redrawn
        if not age:
            groups.abort()
        groups.release()
        await settle_tasks()
        return redrawn

    async def run() -> None:
        producer, stream = Producer(), PromptStream(SAMPLES[:4], seed=0)
        settings = {"batch": 2, "max_policy_age": age, "oversample": oversample}
        groups = Experience(producer, lambda g: True, stream, **settings)
        await play(groups, producer, 1)
        state, place = json.loads(json.dumps(groups.state())), stream.state()
        started = [number for number, end in producer.ends.items() if not end.done()]
        before = len(producer.draws)
        redrawn = [await play(groups, producer, step) for step in (2, 3)]
        again = Producer()
        resumed = Experience(again, lambda g: True, PromptStream(SAMPLES[:4], 0, place), unfinished=state, **settings)
        assert [await play(resumed, again, step) for step in (2, 3)] == redrawn
        assert keys(again) == [keys(producer)[number] for number in started] + keys(producer)[before:]
        assert bool(redrawn[0]) is (surplus == "abort") and len(again.draws) > 8
        await groups.close()
        await resumed.close()

    asyncio.run(run())


# --- the controller ----------------------------------------------------------------------------


@dataclass
class Engine:
    """Samples with the version that the sync has set; `slow` prompts wait for `release`."""

    version: int = 0
    slow: frozenset[str] = frozenset()
    lengths: dict[str, int] = field(default_factory=dict)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    keys: list[object] = field(default_factory=list)

    async def generate(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[Rollout]:
        release = self.release
        for request in requests:
            for key in request.keys:
                self.keys.append(key)
                version = self.version
                if key.prompt in self.slow:
                    await release.wait()
                length = self.lengths.get(key.prompt, 2)
                yield Rollout(
                    key=key,
                    prompt_ids=(1,),
                    token_ids=(1,) * length,
                    logprobs=(-0.5,) * length,
                    text="",
                    finish_reason="stop",
                    versions=(VersionSpan(version=version, start=0, end=length),),
                )

    async def sync(self, version: int) -> dict[str, float]:
        self.version = version
        return {}


class Trainer(ScriptedTrainer):
    """Trains while other tasks run."""

    async def train(self, batch: TrainBatch) -> dict[str, float]:
        metrics = await super().train(batch)
        await settle_tasks()
        return metrics


def build(outcome: Callable[[Rollout], Outcome] = by_index, *, age: int = 1, engine: Engine | None = None, **given):
    engine, stream = engine or Engine(), PromptStream(SAMPLES, seed=0)
    controller = build_controller(
        engine,
        ScriptedRewarder(outcome),
        trainer=Trainer(),
        weights=engine,
        n=2,
        unscored=UnscoredConfig(first_s=0.01, longest_s=0.01),
        **given,
    )
    controller.experience = Experience(
        controller.produce, controller.may_train, stream, batch=2, max_policy_age=age, unfinished=()
    )
    return controller, stream, controller.recorder.kept


def steps(controller: Controller, stream: PromptStream, count: int) -> list[dict[str, float]]:
    async def run() -> list[dict[str, float]]:
        try:
            return [await controller.step(step, stream) for step in range(1, count + 1)]
        finally:
            await controller.experience.close()

    return asyncio.run(run())


def test_next_batch_is_sampled_during_training_by_the_policy_before():
    controller, stream, records = build()
    found = steps(controller, stream, 3)
    assert [m["rollout/policy_age/max"] for m in found] == [0.0, 1.0, 1.0]
    assert all(len(batch.groups) == 2 for batch in controller.trainer.batches)
    assert [len(m) for m in found] and len({r.key for r in records}) == len(records) == 3 * 4


def test_groups_in_flight_end_before_the_last_training():
    async def run() -> None:
        slow = PromptStream(SAMPLES, seed=0).take(1)[0].id
        controller, stream, _ = build(engine=Engine(slow=frozenset({slow})))
        controller.experiment = controller.experiment.model_copy(update={"steps": 2})
        in_flight = []

        async def train(batch: TrainBatch) -> dict[str, float]:
            in_flight.append(controller.experience.in_flight)
            await settle_tasks()
            return {}

        controller.trainer.train = train
        for step in (1, 2):
            await controller.step(step, stream)
        assert in_flight[0] and not in_flight[1]

    asyncio.run(run())


def test_groups_dropped_during_training_do_not_count_in_the_next_step():
    """With max_rounds=1, a step would otherwise train on what is ready, perhaps nothing."""
    order = [sample.id for sample in PromptStream(SAMPLES, seed=0).take(20)]

    def outcome(rollout: Rollout) -> Outcome:
        return Scored(value=1.0) if rollout.key.prompt in order[2:5] else by_index(rollout)

    async def run() -> None:
        algorithm = AlgorithmConfig(dynamic_sampling=DynamicSamplingConfig(max_rounds=1))
        engine = Engine(slow=frozenset((*order[2:4], *order[5:])))
        controller, stream, records = build(outcome, engine=engine, algorithm=algorithm)
        train = controller.trainer.train

        async def end_and_train(batch: TrainBatch) -> dict[str, float]:
            engine.release.set()
            engine.release = asyncio.Event()  # for the groups that replace those that end now
            return await train(batch)

        controller.trainer.train = end_and_train
        await controller.step(1, stream)
        step = asyncio.create_task(controller.step(2, stream))
        await settle_tasks()
        engine.release.set()
        assert (await step)["rollout/groups_dropped"] == 3
        assert [len(batch.groups) for batch in controller.trainer.batches] == [2, 2]
        assert len({r.key for r in records}) == len(records) == 7 * 2
        await controller.experience.close()

    asyncio.run(run())


def test_group_that_became_too_old_is_recorded_as_stale():
    async def run() -> None:
        engine = Engine(slow=frozenset({PromptStream(SAMPLES, seed=0).take(1)[0].id}))
        controller, stream, records = build(engine=engine)
        for step in (1, 2):
            await controller.step(step, stream)
        engine.release.set()
        await settle_tasks()
        metrics = await controller.step(3, stream)
        assert metrics["rollout/stale_groups"] == 1.0 and metrics["rollout/groups_dropped"] == 0.0
        assert metrics["rollout/prompts"] == 3
        stale = [r for r in records if isinstance(r.total, Stale)]
        assert {r.key.prompt for r in stale} == set(engine.slow) and len(stale) == 2
        assert all(r.components[0].outcome.ok for r in stale)  # what was scored stays in the record
        assert all(len(batch.groups) == 2 for batch in controller.trainer.batches)
        await controller.experience.close()

    asyncio.run(run())


def test_outcomes_of_groups_count_stale_ones():
    # Rewards without a consistency component count by their total, which the record of a stale response lacks.
    class Plain(ScriptedRewarder):
        async def score(self, sample: ServiceSample, rollout: Rollout) -> RewardRecord:
            return replace(await super().score(sample, rollout), components=())

    async def run() -> None:
        late = PromptStream(SAMPLES, seed=0).take(1)[0].id
        engine = Engine(slow=frozenset({late}))
        controller, stream, records = build(engine=engine)
        controller.rewarder = Plain(lambda r: Scored(value=0.0) if r.key.prompt == late else by_index(r))
        controller.experience = Experience(controller.produce, lambda group: True, stream, batch=2, max_policy_age=1)
        for step in (1, 2):
            await controller.step(step, stream)
        engine.release.set()
        await settle_tasks()
        metrics = await controller.step(3, stream)
        assert metrics["rollout/stale_groups"] == 1.0
        assert metrics["groups/all_wrong_frac"] == pytest.approx(1 / 3)
        await controller.experience.close()

    asyncio.run(run())


def test_mean_age_is_that_of_the_tokens():
    controller, _, _ = build()
    key, controller.version = SampleKey(run="r", step=1, prompt="s0", sample=0), 3
    spans = (VersionSpan(version=1, start=0, end=3), VersionSpan(version=3, start=3, end=4))
    mixed = Rollout(
        key=key,
        prompt_ids=(1,),
        token_ids=(1,) * 4,
        logprobs=(-1.0,) * 4,
        text="",
        finish_reason="stop",
        versions=spans,
    )
    groups = [RolloutGroup(sample=SAMPLES[0], rollouts=(mixed,), records=())]
    found = controller.describe(groups, groups, rounds=1)
    assert (found["rollout/policy_age/mean"], found["rollout/policy_age/max"]) == (1.5, 2.0)


def test_copies_of_audited_replies_have_the_reward_before_groups_are_dropped():
    """Two equal replies, of which one is audited: without the copy's reward, the group would seem to have signal."""
    controller, _, _ = build()
    correction = RewardCorrection(value=0.8, strata=(), propensity=0.5, shift=0.0)

    async def score(sample: ServiceSample, rollout: Rollout) -> RewardRecord:
        audit = Audit(s_r=0.8, s_j=0.1, mix=0.1) if rollout.key.sample else None
        outcome = Scored(value=0.1 if audit else 0.8)
        return RewardRecord(
            key=rollout.key, total=outcome, components=(Component(name="consistency", outcome=outcome, weight=1.0),),
            action=Reply(content="ok"), band="inside", audit=audit, correction=correction,
        )  # fmt: skip

    controller.rewarder.score = score
    group = asyncio.run(controller.produce(Draw(step=1, sample=SAMPLES[0], attempt=0)))
    assert [r.total for r in group.records] == [Scored(value=0.1)] * 2
    assert not controller.may_train(group)


def test_age_counts_from_the_oldest_token_of_the_group():
    controller, _, _ = build(age=1)
    key = SampleKey(run="r", step=1, prompt="s0", sample=0)
    spans = (VersionSpan(version=1, start=0, end=1), VersionSpan(version=3, start=1, end=2))
    mixed = Rollout(
        key=key, prompt_ids=(1,), token_ids=(1, 2), logprobs=(-1.0, -1.0), text="", finish_reason="stop", versions=spans
    )
    new = replace(mixed, versions=(VersionSpan(version=3, start=0, end=2),))
    group = RolloutGroup(sample=SAMPLES[0], rollouts=(new, mixed), records=())
    for controller.version, stale in ((2, False), (3, True)):
        assert controller.is_stale(group) is stale


@pytest.mark.parametrize("dropped", [(), (1,), (0, 3, 4)])
def test_batches_at_age_0_are_those_of_synchronous_training(dropped: tuple[int, ...]):
    """`dropped`: positions in the order of the prompts whose groups have no signal."""
    equal = {sample.id for i, sample in enumerate(PromptStream(SAMPLES, seed=0).take(20)) if i in dropped}

    def outcome(rollout: Rollout) -> Outcome:
        return Scored(value=1.0) if rollout.key.prompt in equal else by_index(rollout)

    synchronous, stream, before = build(outcome)
    synchronous.experience = None
    other, own, records = build(outcome, age=0)

    async def run() -> None:
        for step in (1, 2, 3):
            await synchronous.step(step, stream)
            await other.step(step, own)
        await other.experience.close()

    asyncio.run(run())
    assert other.trainer.batches == synchronous.trainer.batches
    assert sorted(map(str, records)) == sorted(map(str, before))
    assert own.state() == stream.state()


def test_lasting_judge_outage_ends_step_and_generation():
    async def run() -> None:
        controller, stream, records = build(lambda rollout: JudgeTimeout(detail="no judge"))
        unscored = UnscoredConfig(wait_s=0.05, first_s=0.01, longest_s=0.01)
        controller.experiment = controller.experiment.model_copy(update={"unscored": unscored})
        with pytest.raises(TooManyUnscored, match="4 of 4 responses have no reward"):
            await asyncio.wait_for(controller.step(1, stream), 10)
        assert records == [] and controller.trainer.batches == []
        assert len(controller.engine.keys) == 2 * (1 + 1) * 2
        await asyncio.wait_for(controller.experience.close(), 1)

    asyncio.run(run())


@pytest.mark.parametrize("asynchronous", [True, False])
def test_pauses_of_all_refills_of_a_step_are_bounded(asynchronous: bool, monkeypatch: pytest.MonkeyPatch):
    """Every response fails at first, is scored after a pause, and has no signal then."""
    tried: set[SampleKey] = set()
    waits: list[float] = []

    def outcome(rollout: Rollout) -> Outcome:
        if rollout.key in tried:
            return Scored(value=1.0)
        tried.add(rollout.key)
        return JudgeTimeout(detail="slow")

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("hamr.controller.settle", partial(settle, clock=lambda: sum(waits), sleep=sleep))

    async def run() -> None:
        algorithm = AlgorithmConfig(dynamic_sampling=DynamicSamplingConfig(max_rounds=9))
        controller, stream, _ = build(outcome, algorithm=algorithm)
        unscored = UnscoredConfig(max_frac=0.0, wait_s=25.0, first_s=10.0, longest_s=10.0)
        controller.experiment = controller.experiment.model_copy(update={"unscored": unscored})
        experience = controller.experience
        if not asynchronous:
            controller.experience = None
        with pytest.raises(TooManyUnscored, match="after 25 s of retries"):
            await controller.step(1, stream)
        assert waits == [10.0, 10.0, 5.0]
        await experience.close()

    asyncio.run(run())


def test_failed_responses_are_scored_again_before_their_group_is_judged():
    down = True

    def outcome(rollout: Rollout) -> Outcome:
        nonlocal down
        if down and rollout.key.sample == 0:
            return JudgeTimeout(detail="slow")
        return by_index(rollout)

    async def run() -> None:
        nonlocal down
        controller, stream, records = build(outcome)
        controller.experiment = controller.experiment.model_copy(
            update={"unscored": UnscoredConfig(max_frac=0.1, first_s=0.01, longest_s=0.01)}
        )
        stepping = asyncio.create_task(controller.step(1, stream))
        await settle_tasks()
        down = False
        metrics = await stepping
        assert metrics["rollout/rescored"] == 2.0
        assert all(isinstance(r.total, Scored) for r in records)
        await controller.experience.close()

    asyncio.run(run())


def test_groups_without_signal_count_as_scored_and_teach_the_order():
    order = [sample.id for sample in PromptStream(SAMPLES, seed=0).take(4)]

    def outcome(rollout: Rollout) -> Outcome:
        if rollout.key.prompt == order[3]:
            return JudgeTimeout(detail="slow")
        return Scored(value=1.0) if rollout.key.prompt in order else by_index(rollout)

    controller, stream, records = build(outcome)
    unscored = UnscoredConfig(max_frac=0.4, wait_s=0.0, first_s=0.01, longest_s=0.01)
    controller.experiment = controller.experiment.model_copy(update={"unscored": unscored})
    learned: dict[str, float] = {}
    stream.learn = lambda sample, share: learned.update({sample.id: share})
    steps(controller, stream, 1)
    assert len(controller.trainer.batches) == 1 and len(records) == 6 * 2
    assert [learned.get(prompt) for prompt in order] == [1.0, 1.0, 1.0, None]


def test_step_ends_when_no_group_has_signal():
    algorithm = AlgorithmConfig(dynamic_sampling=DynamicSamplingConfig(max_rounds=2))
    controller, stream, records = build(lambda rollout: Scored(value=1.0), algorithm=algorithm)
    steps(controller, stream, 1)
    assert controller.trainer.batches == [] and len(records) >= 2 * 2 * 2


def test_oversampled_step_trains_on_the_first_groups_of_its_own_policy():
    controller, stream, records = build()
    controller.experience = Experience(
        controller.produce, controller.may_train, stream, batch=2, max_policy_age=0, oversample=3.0
    )
    found = steps(controller, stream, 3)
    assert [m["rollout/policy_age/max"] for m in found] == [0.0] * 3
    assert all(len(batch.groups) == 2 for batch in controller.trainer.batches)
    unused = sum(m["rollout/surplus_groups"] for m in found)
    assert unused and not any(m["rollout/groups_dropped"] for m in found), "all groups have a signal"
    assert len({r.key for r in records}) == len(records) == 2 * (3 * 2 + unused)
    stale = [r.total for r in records if isinstance(r.total, Stale)]
    assert len(stale) == 2 * unused and all("oversample" in total.detail for total in stale)


def test_kept_surplus_is_trained_on_in_the_next_step():
    assert DynamicSamplingConfig(oversample=2.0, surplus="keep").bounds(0) == (1, 1.0)

    async def run() -> None:
        slow = PromptStream(SAMPLES, seed=0).take(3)[0].id
        engine = Engine(slow=frozenset({slow}))
        controller, stream, records = build(engine=engine)
        age, oversample = DynamicSamplingConfig(oversample=1.5, surplus="keep").bounds(0)
        controller.experience = Experience(
            controller.produce, controller.may_train, stream, batch=2, max_policy_age=age, oversample=oversample
        )
        await controller.step(1, stream)
        assert controller.experience.in_flight == 3, "the slow group and two new ones: 1.5 batches"
        engine.release.set()
        await settle_tasks()
        metrics = await controller.step(2, stream)
        assert metrics["rollout/policy_age/max"] == 1.0
        assert slow in {r.key.prompt for r in records} and all(r.total.ok for r in records)
        assert "rollout/aborted_groups" not in metrics
        await controller.experience.close()

    asyncio.run(run())


def test_length_of_redrawn_prompts_is_reported():
    async def run() -> None:
        slow = PromptStream(SAMPLES, seed=0).take(1)[0].id
        engine = Engine(slow=frozenset({slow}), lengths={slow: 6})
        controller, stream, _ = build(engine=engine)
        controller.experience = Experience(
            controller.produce, controller.may_train, stream, batch=2, max_policy_age=0, oversample=1.5
        )
        metrics = await controller.step(1, stream)
        assert metrics["rollout/aborted_groups"] == 1 and "rollout/redrawn_length" not in metrics
        engine.release.set()
        metrics = await controller.step(2, stream)
        assert metrics["rollout/redrawn_length"] == 3.0
        await controller.experience.close()

    asyncio.run(run())
