"""The resizable limiter: at most N holders, in FIFO order, with cancellation."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from hamr.pools.resizable_limiter import ResizableLimiter


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=25),
    st.lists(st.integers(1, 6), max_size=4),
)
def test_limit_holds_and_every_waiter_is_admitted(most: int, visits: list[tuple[int, bool]], sizes: list[int]) -> None:
    """Each visitor stays for some iterations of the event loop; some are cancelled at any point, and the limit
    changes.
    """

    async def play() -> None:
        gate, bound = ResizableLimiter(most), max([most, *sizes])
        inside, came, left = 0, [], 0

        async def visit(number: int, turns: int) -> None:
            nonlocal inside, left
            async with gate:
                came.append(number)
                inside += 1
                assert inside <= bound
                try:
                    for _ in range(turns):
                        await asyncio.sleep(0)
                finally:
                    inside -= 1
            left += 1

        tasks = [asyncio.create_task(visit(i, turns)) for i, (turns, _) in enumerate(visits)]
        for turn, (_, gone) in enumerate(visits):
            await asyncio.sleep(0)
            if gone:
                tasks[turn].cancel()
            if turn < len(sizes):
                gate.resize(sizes[turn])
        ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
        assert came == sorted(came)
        assert left == sum(end is None for end in ended) and inside == 0
        async with gate:
            pass

    asyncio.run(play())


async def test_waiter_cancelled_on_admission_frees_its_slot() -> None:
    gate = ResizableLimiter(1)
    async with gate:
        second = asyncio.create_task(gate.__aenter__())
        await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    async with asyncio.timeout(10), gate:
        pass


async def test_growing_the_limit_admits_a_waiter() -> None:
    gate = ResizableLimiter(1)
    async with gate:
        second = asyncio.create_task(gate.__aenter__())
        await asyncio.sleep(0)
        gate.resize(2)
        await asyncio.wait_for(second, 10)
