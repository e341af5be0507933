"""Dispatch of requests to rollout workers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from hamr.errors import EngineDied
from hamr.protocols import PROBE_RUN, GenerationRequest, SamplingConfig
from hamr.rollout.dispatch import Dispatcher, Placement
from hamr.types import SampleKey


def request(name: str, samples: int = 2, *, turn: int = 0, prompt: int = 10, longest: int = 10) -> GenerationRequest:
    keys = tuple(SampleKey(run="r", step=1, prompt=name, sample=i, turn=turn) for i in range(samples))
    sampling = SamplingConfig(max_new_tokens=longest)
    return GenerationRequest(keys=keys, seeds=(0,) * samples, prompt_ids=(1,) * prompt, sampling=sampling)


async def waiting(dispatcher: Dispatcher, asked: GenerationRequest) -> asyncio.Task[Placement]:
    task = asyncio.create_task(dispatcher.place(asked))
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_request_starts_whole_on_the_worker_with_the_fewest_tokens() -> None:
    dispatcher = Dispatcher(3, 8)
    sizes = [(1, 50), (4, 10), (3, 10), (1, 10), (2, 10), (1, 10)]
    placed = [await dispatcher.place(request(str(i), n, prompt=p)) for i, (n, p) in enumerate(sizes)]
    # tokens under way after each: 60 0 0, 60 80 0, 60 80 60, 80 80 60, 80 80 100, 100 80 100
    assert [p.worker for p in placed] == [0, 1, 2, 0, 2, 0]
    assert [p.left for p in placed] == [1, 4, 3, 1, 2, 1]


async def test_request_starts_where_the_first_slot_gets_free() -> None:
    dispatcher = Dispatcher(2, 2)
    first, second = [await dispatcher.place(request(name)) for name in "ab"]
    third = await waiting(dispatcher, request("c"))
    fourth = await waiting(dispatcher, request("d"))
    dispatcher.free(second)
    assert (await third).worker == 1, "one free slot is enough, the other response waits in the engine"
    dispatcher.free(second)
    dispatcher.free(first)
    assert (await fourth).worker == 0


async def test_large_group_starts_on_an_engine_with_fewer_slots() -> None:
    assert (await Dispatcher(1, 2).place(request("a", 16))).left == 16


async def test_worker_that_is_down_gets_nothing() -> None:
    dispatcher = Dispatcher(2, 2)
    dispatcher.set_up(0, False)
    assert (await dispatcher.place(request("a"))).worker == 1
    task = await waiting(dispatcher, request("b"))
    dispatcher.set_up(0, True)
    assert (await task).worker == 0


async def test_dialogue_stays_on_its_worker_while_that_has_a_free_slot() -> None:
    dispatcher = Dispatcher(2, 2)
    first = await dispatcher.place(request("a", 1))
    await dispatcher.place(request("b", 1))
    dispatcher.free(first)
    await dispatcher.place(request("c", 1, prompt=90))
    second = await dispatcher.place(request("a", 1, turn=1))
    assert second.worker == first.worker == 0, "although worker 1 has fewer tokens"
    assert (await dispatcher.place(request("c", 1, turn=1))).worker == 1, "its own has no free slot"


async def test_next_turn_starts_before_new_dialogues() -> None:
    dispatcher = Dispatcher(1, 1)
    running = await dispatcher.place(request("a", 1))
    new = await waiting(dispatcher, request("b", 1))
    turn = await waiting(dispatcher, request("c", 1, turn=1))
    dispatcher.free(running)
    running = await turn
    assert not new.done()
    dispatcher.free(running)
    await new


async def test_pause_waits_for_the_placed_responses_and_not_for_the_queue() -> None:
    dispatcher, order = Dispatcher(1, 1), []
    running = await dispatcher.place(request("a", 1))
    queued = await waiting(dispatcher, request("b", 1))

    async def load_weights() -> None:
        async with dispatcher.pause():
            order.append(queued.done())

    loading = asyncio.create_task(load_weights())
    await asyncio.sleep(0)
    assert order == []
    dispatcher.free(running)
    await asyncio.wait_for(loading, 1)
    assert (order, (await queued).worker) == ([False], 0)


async def test_probe_starts_before_all_other_requests_and_during_a_pause() -> None:
    dispatcher = Dispatcher(1, 1)
    running = await dispatcher.place(request("a", 1))
    queued = await waiting(dispatcher, request("b", 1, turn=1))
    probe = request("", 1)
    probe = replace(probe, keys=(replace(probe.keys[0], run=PROBE_RUN),))
    asked = await waiting(dispatcher, probe)
    dispatcher.free(running)
    dispatcher.free(await asyncio.wait_for(asked, 1))
    running = await queued
    asked = asyncio.create_task(dispatcher.place(request("c", 1)))
    dispatcher.free(running)
    dispatcher.free(await asked)
    async with dispatcher.pause():
        waits = await waiting(dispatcher, request("d", 1))
        dispatcher.free(await asyncio.wait_for(dispatcher.place(probe), 1))
        assert not waits.done()
    await waits


async def test_cancelled_request_leaves_its_place_in_the_queue_or_its_slot() -> None:
    dispatcher = Dispatcher(1, 2)
    running = await dispatcher.place(request("a"))
    queued, next_one = await waiting(dispatcher, request("b")), await waiting(dispatcher, request("c"))
    queued.cancel()
    dispatcher.free(running, 2)  # c has its slot now, but has not seen it
    next_one.cancel()
    await asyncio.gather(queued, next_one, return_exceptions=True)
    assert (await dispatcher.place(request("d"))).worker == 0


async def test_failure_reaches_all_that_wait_and_later_ones() -> None:
    dispatcher = Dispatcher(1, 2)
    await dispatcher.place(request("a"))
    task = await waiting(dispatcher, request("b"))
    dispatcher.fail(EngineDied("worker 0 died 6 times"))
    for call in (task, dispatcher.place(request("c"))):
        with pytest.raises(EngineDied, match="6 times"):
            await call
