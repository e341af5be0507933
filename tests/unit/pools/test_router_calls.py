"""Responses batched into one call of the router: each gets its own record as soon as it is available."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hamr.pools import router_calls
from hamr.pools.router_calls import RouterCalls, in_batches, pack, packed_done, unpack


class Actor:
    """Answers a call as the router actor does, by way of a function of the arguments."""

    def __init__(self, score: Any) -> None:
        self.score, self.calls, self.cancelled = score, [], []
        self.score_many = self

    def options(self, **how: Any) -> Any:
        return self

    def remote(self, calls: bytes) -> AsyncIterator[Any]:
        self.calls.append(unpack(calls))
        return self._stream(self.calls[-1])

    async def _stream(self, calls: list[Any]) -> AsyncIterator[Any]:
        async for done in in_batches(self.score, calls):
            yield _value(packed_done(done))


async def _value(value: Any) -> Any:
    return value


async def quick(name: str, seconds: float = 0.0) -> Any:
    await asyncio.sleep(seconds)
    if name == "bad":
        raise ValueError("a mistake of the router")
    return f"record of {name}"


async def test_concurrent_responses_share_a_call_with_separate_records() -> None:
    actor = Actor(quick)
    calls = RouterCalls(actor)
    records: list[Any] = await asyncio.gather(*(calls.score(f"r{i}") for i in range(10)))
    assert records == [f"record of r{i}" for i in range(10)]
    assert actor.calls == [[(f"r{i}",) for i in range(10)]]
    assert await calls.score("later") == "record of later"
    assert len(actor.calls) == 2


async def test_full_batch_is_sent_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router_calls, "MOST", 4)
    monkeypatch.setattr(router_calls, "GATHER_S", 0.5)
    actor = Actor(quick)
    calls = RouterCalls(actor)
    asked = [asyncio.create_task(calls.score(f"r{i}")) for i in range(9)]
    await asyncio.sleep(0.05)
    assert [len(call) for call in actor.calls] == [4, 4], "the ninth waits for company"
    await asyncio.gather(*asked)
    assert [len(call) for call in actor.calls] == [4, 4, 1]


async def test_slow_response_does_not_delay_others() -> None:
    calls = RouterCalls(Actor(quick))
    slow = asyncio.create_task(calls.score("slow", 30.0))
    assert await asyncio.wait_for(calls.score("fast"), 5.0) == "record of fast"
    assert not slow.done()
    slow.cancel()


async def test_error_affects_only_its_own_response() -> None:
    calls = RouterCalls(Actor(quick))
    good, bad = await asyncio.gather(calls.score("good"), calls.score("bad"), return_exceptions=True)
    assert good == "record of good"
    assert isinstance(bad, ValueError)


async def test_dead_actor_fails_all_responses_without_a_record() -> None:
    async def dying(calls: bytes) -> AsyncIterator[Any]:
        yield _value(pack([(1, "record of second")]))
        raise ConnectionError("the actor died")

    actor = Actor(quick)
    actor.remote = dying  # type: ignore[method-assign, assignment]
    calls = RouterCalls(actor)
    first, second = await asyncio.gather(calls.score("first"), calls.score("second"), return_exceptions=True)
    assert (str(first), second) == ("the actor died", "record of second")


async def test_call_is_cancelled_only_if_all_waiters_are_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    cancelled = []
    monkeypatch.setattr(ray, "cancel", lambda stream, recursive: cancelled.append(recursive))
    calls = RouterCalls(Actor(quick))
    one, two = (asyncio.create_task(calls.score(name, 30.0)) for name in ("one", "two"))
    await asyncio.sleep(0.05)
    one.cancel()
    await asyncio.sleep(0.05)
    assert cancelled == []
    two.cancel()
    await asyncio.sleep(0.05)
    assert cancelled == [False]


async def test_response_cancelled_before_the_call_is_not_sent() -> None:
    actor = Actor(quick)
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

    calls = RouterCalls(Actor(score))
    good, bad = await asyncio.gather(calls.score("good"), calls.score("bad"), return_exceptions=True)
    assert good == "record of good"
    assert isinstance(bad, RuntimeError) and "Local('odd')" in str(bad)


async def test_cancellation_inside_the_router_is_reported() -> None:
    async def score(name: str) -> Any:
        if name == "bad":
            raise asyncio.CancelledError
        return f"record of {name}"

    calls = RouterCalls(Actor(score))
    good, bad = await asyncio.gather(calls.score("good"), calls.score("bad"), return_exceptions=True)
    assert good == "record of good"
    assert isinstance(bad, RuntimeError) and "cancelled" in str(bad)


async def test_call_that_cannot_be_sent_fails_its_responses() -> None:
    calls = RouterCalls(Actor(quick))
    async with asyncio.timeout(5):
        with pytest.raises(Exception, match="pickle"):
            await calls.score(lambda: "not data")
