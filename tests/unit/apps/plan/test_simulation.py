"""Simulated steps: hand-computed times, and invariants of every step."""

from __future__ import annotations

import asyncio
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import simulated_time
from hamr.apps.plan.simulation import ROLLOUT, Cluster, Play, Service, Simulated, SimulatedResponse, Station, simulate
from hamr.protocols import GenerationRequest, SamplingConfig
from hamr.rollout.dispatch import Dispatcher
from hamr.types import SampleKey

FIXED = Service(fixed_s=1.0)


def station(replicas: int = 1, slots: int = 1, service: Service = FIXED) -> Station:
    return Station(replicas=replicas, slots=slots, service=service)


def asked(group: int, work: float, *stages: tuple[tuple[str, float], ...]) -> SimulatedResponse:
    return SimulatedResponse(group=group, work=work, chains=(stages,))


def test_stages_of_one_response_run_sequentially() -> None:
    response = asked(0, 2.0, (("reranker", 0.5), ("reranker", 0.5)), (("judge", 3.0),))
    pools = {"reranker": station(slots=2), "judge": station()}
    step = simulate([[response]], Cluster(rollout=station(), pools=pools, train_s=4.0, sync_s=1.0))
    assert (step.rollout_s, step.tail_s, step.step_s) == (2.0, 3.5, 10.5)
    assert step.stations["reranker"].questions == 2
    assert step.stations["judge"].utilisation == pytest.approx(3.0 / 5.5)


def test_questions_wait_for_a_free_slot_in_fifo_order() -> None:
    # Both responses end at 1 s on two workers; one reranker with one place needs 2 s for each.
    responses = [asked(0, 1.0, (("reranker", 2.0),)), asked(1, 1.0, (("reranker", 2.0),))]
    step = simulate([responses], Cluster(rollout=station(replicas=2), pools={"reranker": station()}))
    assert (step.rollout_s, step.tail_s) == (1.0, 4.0)
    usage = step.stations["reranker"]
    assert (usage.queue_p50, usage.queue_p99) == (0.0, 2.0)
    assert usage.utilisation == pytest.approx(4.0 / 5.0)


def test_requests_on_one_replica_share_its_throughput() -> None:
    # Alone a piece of work 1 takes 2 s, two together 3 s each. Works 1 and 2: the first ends at 3 s, when the second
    # has done half of its work; the rest, 1, takes it 2 s alone.
    workers = station(slots=2, service=Service(fixed_s=1.0, each_s=1.0))
    step = simulate(
        [[SimulatedResponse(group=0, work=1.0), SimulatedResponse(group=0, work=2.0)]],
        Cluster(rollout=workers, pools={}),
    )
    assert step.step_s == pytest.approx(5.0)


def test_group_spills_over_when_its_replica_is_full() -> None:
    # Four questions of group 0, two replicas with two places: two go over, so that all run together.
    response = asked(0, 1.0, (("judge", 1.0),) * 4)
    step = simulate([[response]], Cluster(rollout=station(), pools={"judge": station(replicas=2, slots=2)}))
    assert (step.tail_s, step.stations["judge"].queue_p99) == (1.0, 0.0)


def test_groups_on_one_replica_do_not_use_idle_replicas() -> None:
    # Groups 0 and 2 of two replicas: both go to the first, where two together take 3 s; apart it would be 2 s.
    responses = [asked(group, 1.0, (("judge", 1.0),)) for group in (0, 2)]
    pools = {"judge": station(replicas=2, slots=2, service=Service(fixed_s=1.0, each_s=1.0))}
    assert simulate([responses], Cluster(rollout=station(replicas=2), pools=pools)).tail_s == 3.0


def test_group_of_responses_queues_on_one_worker() -> None:
    # Eight responses on workers of four slots: the second worker has no part of the group.
    responses, workers = [asked(0, 1.0)] * 8, station(replicas=2, slots=4)
    assert simulate([responses], Cluster(rollout=workers, pools={})).rollout_s == 2.0
    assert simulate([responses], Cluster(rollout=replace(workers, splits_groups=True), pools={})).rollout_s == 1.0


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("samples", [1, 3, 8])
@pytest.mark.parametrize("splits_groups", [False, True])
def test_groups_end_when_the_real_dispatch_ends_them(workers: int, samples: int, splits_groups: bool) -> None:
    rng = random.Random(f"{workers} {samples}")
    groups = [[rng.uniform(0.5, 3.0) for _ in range(samples)] for _ in range(12)]
    rollout = replace(station(replicas=workers, slots=4), splits_groups=splits_groups)
    play, ends = Play(Cluster(rollout=rollout, pools={})), {}
    for number, works in enumerate(groups):
        play.start(number, [SimulatedResponse(group=number, work=work) for work in works])
    while play.advance():
        ends |= {number: play.now for number in play.ended if number not in ends}
    assert ends == pytest.approx(simulated_time.run(dispatched_ends(groups, rollout)))


async def dispatched_ends(groups: list[list[float]], rollout: Station) -> dict[int, float]:
    """Return the end of each group on engines with `slots` slots behind a `Dispatcher`."""
    dispatcher, loop = Dispatcher(rollout.replicas, rollout.slots), asyncio.get_running_loop()
    engines = [asyncio.Semaphore(rollout.slots) for _ in range(rollout.replicas)]
    ends: dict[int, float] = {}
    began = loop.time()

    async def generate(number: int, works: list[float]) -> None:
        keys = tuple(SampleKey(run="r", step=1, prompt=f"p{number}", sample=i) for i in range(len(works)))
        request = GenerationRequest(prompt_ids=(1,), keys=keys, seeds=(0,) * len(keys), sampling=SamplingConfig())
        placement = await dispatcher.place(request)

        async def respond(work: float) -> None:
            async with engines[placement.worker]:
                await asyncio.sleep(work)
            dispatcher.free(placement)

        await asyncio.gather(*map(respond, works))
        ends[number] = max(ends.get(number, 0.0), loop.time() - began)

    requests = [
        (number, part)
        for number, works in enumerate(groups)
        for part in ([[work] for work in works] if rollout.splits_groups else [works])
    ]
    await asyncio.gather(*(generate(*request) for request in requests))
    return ends


def test_rounds_run_sequentially() -> None:
    rounds = [[asked(0, 1.0, (("judge", 1.0),))], [asked(1, 2.0, (("judge", 1.0),))]]
    step = simulate(rounds, Cluster(rollout=station(), pools={"judge": station()}))
    assert (step.rollout_s, step.tail_s) == (3.0, 2.0)


def test_rewards_are_dropped_after_the_router_deadline() -> None:
    # The second question starts at 1 + 10 s; its response's deadline is 1 + 5 s, and it leaves the line unasked.
    responses = [asked(0, 1.0, (("judge", 4.0),)), asked(0, 1.0, (("judge", 10.0),)), asked(0, 1.0, (("judge", 1.0),))]
    pools = {"judge": station()}
    step = simulate([responses], Cluster(rollout=station(replicas=1, slots=3), pools=pools, deadline_s=5.0))
    assert (step.late, step.step_s, step.slowest_s) == (2, 6.0, 5.0)
    assert simulate([responses], Cluster(rollout=station(replicas=1, slots=3), pools=pools)).slowest_s == 15.0
    assert step.stations["judge"].questions == 2


def test_abandoned_question_does_not_delay_later_rounds() -> None:
    # Answers take 4 s one after the other from 1 s on; at 7 s the second is under way and the third still in line.
    # The next round's question comes at 8 s, begins at 9 and ends at 13, a second before its own deadline.
    rounds = [[asked(0, 1.0, (("judge", 4.0),))] * 3, [asked(1, 1.0, (("judge", 4.0),))]]
    step = simulate(rounds, Cluster(rollout=station(slots=3), pools={"judge": station()}, deadline_s=6.0))
    assert (step.late, step.step_s) == (2, 13.0)


def test_empty_stages_and_responses_without_questions_take_no_time() -> None:
    responses = [SimulatedResponse(group=0, work=1.0), SimulatedResponse(group=0, work=1.0, chains=(((), ()), ()))]
    step = simulate([responses], Cluster(rollout=station(slots=2), pools={"judge": station()}))
    assert (step.step_s, step.tail_s, step.stations["judge"].questions) == (1.0, 0.0, 0)
    assert simulate([], Cluster(rollout=station(), pools={}, train_s=2.0, sync_s=0.5)).step_s == 2.5


WORK = st.floats(0.01, 10.0)
RESPONSES = st.lists(
    st.tuples(st.integers(0, 3), WORK, st.lists(WORK, max_size=3), st.lists(WORK, max_size=2)), max_size=12
)
SERVICES = st.builds(Service, fixed_s=st.floats(0.01, 2.0), each_s=st.floats(0.0, 1.0))
STATIONS = st.builds(
    Station, replicas=st.integers(1, 4), slots=st.integers(1, 4), service=SERVICES, splits_groups=st.booleans()
)


def play(drawn: list, rollout: Station, first: Station, second: Station, deadline_s: float = math.inf) -> Simulated:
    responses = [
        asked(g, w, tuple(("first", f) for f in firsts), tuple(("second", s) for s in seconds))
        for g, w, firsts, seconds in drawn
    ]
    return simulate(
        [responses], Cluster(rollout=rollout, pools={"first": first, "second": second}, deadline_s=deadline_s)
    )


@given(drawn=RESPONSES, rollout=STATIONS, first=STATIONS, second=STATIONS)
def test_all_work_is_done_and_slots_are_never_shared(
    drawn: list, rollout: Station, first: Station, second: Station
) -> None:
    step = play(drawn, rollout, first, second)
    assert step.stations[ROLLOUT].questions == len(drawn)
    assert step.stations["first"].questions == sum(len(d[2]) for d in drawn)
    assert step.stations["second"].questions == sum(len(d[3]) for d in drawn)
    assert step.late == 0
    for usage in step.stations.values():
        assert 0.0 <= usage.utilisation <= 1.0 + 1e-9
        assert 0.0 <= usage.queue_p50 <= usage.queue_p99
    # No question is faster than alone on its replica, and all together are no slower than one after the other.
    alone = [
        w * rollout.service.seconds(1)
        + max((f * first.service.seconds(1) for f in fs), default=0.0)
        + max((s * second.service.seconds(1) for s in ss), default=0.0)
        for _, w, fs, ss in drawn
    ]
    assert step.step_s >= max(alone, default=0.0) - 1e-6
    crowded = sum(
        w * rollout.service.seconds(rollout.slots)
        + sum(fs) * first.service.seconds(first.slots)
        + sum(ss) * second.service.seconds(second.slots)
        for _, w, fs, ss in drawn
    )
    assert step.step_s <= crowded + 1e-6


@given(drawn=RESPONSES, rollout=STATIONS, first=STATIONS, second=STATIONS, deadline=st.floats(0.1, 20.0))
def test_scoring_ends_within_one_deadline_of_the_last_response(
    drawn: list, rollout: Station, first: Station, second: Station, deadline: float
) -> None:
    step = play(drawn, rollout, first, second, deadline)
    assert step.tail_s <= deadline + 1e-6
    assert 0 <= step.late <= len(drawn)
