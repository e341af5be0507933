"""Work in input order with bounded concurrency."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.apps.score.flow import in_order


@given(st.lists(st.integers(0, 5), max_size=30), st.integers(1, 8))
def test_results_keep_order_with_bounded_concurrency(delays: list[int], at_once: int) -> None:
    started: list[int] = []
    yielded: list[int] = []
    most = 0

    async def work(item: tuple[int, int]) -> int:
        nonlocal most
        index, delay = item
        started.append(index)
        most = max(most, len(started) - len(yielded))
        for _ in range(delay):
            await asyncio.sleep(0)
        return -index

    async def run() -> None:
        async for (index, _), result in in_order(enumerate(delays), work, at_once=at_once):
            assert result == -index
            yielded.append(index)

    asyncio.run(run())
    assert yielded == list(range(len(delays)))
    assert most <= at_once
    assert len(started) == len(delays)


async def test_items_before_an_input_error_are_yielded() -> None:
    def items() -> Iterator[int]:
        yield from range(3)
        raise ValueError("line 4")

    async def work(item: int) -> int:
        await asyncio.sleep(0)
        return item

    seen = []

    async def consume() -> None:
        async for item, _ in in_order(items(), work, at_once=2):
            seen.append(item)

    with pytest.raises(ValueError, match="line 4"):
        await consume()
    assert seen == [0, 1, 2]


async def test_pending_work_is_cancelled_on_failure_or_consumer_exit() -> None:
    cancelled: list[int] = []

    async def work(item: int) -> int:
        if item == 1:
            raise RuntimeError("broken")
        try:
            await asyncio.sleep(1000 if item else 0)
        except asyncio.CancelledError:
            cancelled.append(item)
            raise
        return item

    with pytest.raises(RuntimeError, match="broken"):
        async for _ in in_order(range(4), work, at_once=4):
            pass
    assert cancelled == [2, 3]

    async def consume() -> None:
        async for _ in in_order([5, 6], work, at_once=2):
            raise AssertionError("nothing is done yet")

    task = asyncio.create_task(consume())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled == [2, 3, 5, 6]


async def test_zero_concurrency_is_rejected() -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        await anext(in_order([1], asyncio.sleep, at_once=0))
