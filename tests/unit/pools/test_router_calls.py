"""Responses batched into one call of the router: each gets its own record as soon as it is available."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hamr.pools import router_calls
from hamr.pools.router_calls import RouterCalls
from tests.local_actor import LocalActor


async def quick(name: str, seconds: float = 0.0) -> Any:
    await asyncio.sleep(seconds)
    if name == "bad":
        raise ValueError("a mistake of the router")
    return f"record of {name}"


async def test_concurrent_responses_share_a_call_with_separate_records() -> None:
    actor = LocalActor(quick)
    calls = RouterCalls(actor)
    records: list[Any] = await asyncio.gather(*(calls.score(f"r{i}") for i in range(10)))
    assert records == [f"record of r{i}" for i in range(10)]
    assert actor.calls == [[(f"r{i}",) for i in range(10)]]
    assert await calls.score("later") == "record of later"
    assert len(actor.calls) == 2


async def test_responses_wait_for_the_call_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_calls, "MOST", 4)
    actor, answered = LocalActor(quick), asyncio.Event()
    accept = actor.start_scoring.remote

    async def busy(*arguments: Any) -> None:
        await accept(*arguments)
        await answered.wait()

    actor.start_scoring.remote = busy
    calls = RouterCalls(actor)
    first = asyncio.create_task(calls.score("r0"))
    assert await asyncio.wait_for(first, 5.0) == "record of r0", "before its call has ended"
    later = [asyncio.create_task(calls.score(f"r{i}")) for i in range(1, 8)]
    await asyncio.sleep(0.05)
    assert [len(call) for call in actor.calls] == [1]
    answered.set()
    await asyncio.gather(*later)
    assert [len(call) for call in actor.calls] == [1, 4, 3]


async def test_slow_response_does_not_delay_others() -> None:
    calls = RouterCalls(LocalActor(quick))
    slow = asyncio.create_task(calls.score("slow", 30.0))
    assert await asyncio.wait_for(calls.score("fast"), 5.0) == "record of fast"
    assert not slow.done()
    slow.cancel()


async def test_error_affects_only_its_own_response() -> None:
    calls = RouterCalls(LocalActor(quick))
    good, bad = await asyncio.gather(calls.score("good"), calls.score("bad"), return_exceptions=True)
    assert good == "record of good"
    assert isinstance(bad, ValueError)


async def test_dead_actor_fails_all_responses_without_a_record() -> None:
    actor = LocalActor(quick)
    calls = RouterCalls(actor)
    working = actor.results.remote

    async def dying(stream: str) -> AsyncIterator[Any]:
        async for part in working(stream):
            yield part
            raise ConnectionError("the actor died")

    actor.results.remote = dying
    slow, fast = await asyncio.gather(calls.score("slow", 30.0), calls.score("fast"), return_exceptions=True)
    assert (str(slow), fast) == ("the actor died", "record of fast")
    actor.results.remote = working
    assert await calls.score("again") == "record of again", "on a new stream"
    assert len(actor.streams) == 2


async def test_cancelled_waiters_cancel_only_their_own_responses() -> None:
    cancelled = []

    async def score(name: str, seconds: float) -> Any:
        try:
            return await quick(name, seconds)
        except asyncio.CancelledError:
            cancelled.append(name)
            raise

    actor = LocalActor(score)
    calls = RouterCalls(actor)
    one, two, three = (asyncio.create_task(calls.score(name, 0.2)) for name in ("one", "two", "three"))
    await asyncio.sleep(0.05)
    one.cancel()
    two.cancel()
    assert await three == "record of three"
    assert cancelled == ["one", "two"]
    assert actor.cancelled == [[0, 1]]


async def test_response_cancelled_before_the_call_is_not_sent() -> None:
    actor = LocalActor(quick)
    calls = RouterCalls(actor)
    gone = asyncio.create_task(calls.score("gone"))
    await asyncio.sleep(0)
    gone.cancel()
    assert await calls.score("here") == "record of here"
    assert actor.calls == [[("here",)]]


async def test_unpicklable_error_is_sent_as_text() -> None:
    class Local(Exception):
        """Of no module, so that no other process could make one."""

    async def score(name: str) -> Any:
        if name == "bad":
            raise Local("odd")
        return f"record of {name}"

    calls = RouterCalls(LocalActor(score))
    good, bad = await asyncio.gather(calls.score("good"), calls.score("bad"), return_exceptions=True)
    assert good == "record of good"
    assert isinstance(bad, RuntimeError) and "Local('odd')" in str(bad)


async def test_cancellation_inside_the_router_is_reported() -> None:
    async def score(name: str) -> Any:
        if name == "bad":
            raise asyncio.CancelledError
        return f"record of {name}"

    calls = RouterCalls(LocalActor(score))
    good, bad = await asyncio.gather(calls.score("good"), calls.score("bad"), return_exceptions=True)
    assert good == "record of good"
    assert isinstance(bad, RuntimeError) and "cancelled" in str(bad)


async def test_call_that_cannot_be_sent_fails_its_responses() -> None:
    calls = RouterCalls(LocalActor(quick))
    async with asyncio.timeout(5):
        with pytest.raises(Exception, match="pickle"):
            await calls.score(lambda: "not data")
        assert await calls.score("data") == "record of data"
