"""The rate limiter of an endpoint, on a clock that only sleeping advances."""

from __future__ import annotations

import asyncio

from hamr.pools.rate_limit import LONGEST_NAMED_S, LONGEST_WAIT_S, MOST_IN_A_ROW, Pace, pace_of


class Clock:
    def __init__(self) -> None:
        self.now, self.slept = 100.0, []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


def paced():
    clock = Clock()
    return Pace(clock, clock.sleep), clock


async def test_concurrency_is_unlimited_before_a_refusal():
    pace, clock = paced()
    assert [await pace.admit(50), await pace.admit(50)] == [50, 50]
    pace.settle(50, answered=50, retry_in_s=None)
    assert (pace.limit, pace.under_way, clock.slept) == (None, 50, [])


async def test_refusal_halves_concurrency_and_waits_for_retry_after():
    pace, clock = paced()
    await pace.admit(6)
    await pace.admit(4)
    pace.settle(6, answered=5, retry_in_s=7.0)
    pace.settle(4, answered=3, retry_in_s=3.0)
    # Both were under way when the endpoint was full: the limit falls once, and the longer wait counts.
    assert pace.limit == 5
    assert await pace.admit(9) == 5
    assert clock.slept == [7.0]


async def test_refusals_of_requests_sent_together_count_once():
    pace, _ = paced()
    for _ in range(2 * MOST_IN_A_ROW):
        await pace.admit(1)
    for _ in range(2 * MOST_IN_A_ROW):
        pace.settle(1, answered=0, retry_in_s=1.0)
    assert (pace.in_a_row, pace.is_exhausted) == (1, False)


async def test_wait_that_a_refusal_names_is_bounded():
    for named in (1e9, float("inf")):
        pace, clock = paced()
        await pace.admit(2)
        pace.settle(1, answered=0, retry_in_s=5.0)
        pace.settle(1, answered=0, retry_in_s=named)
        await pace.admit(1)
        pace.settle(1, answered=0, retry_in_s=named)
        await pace.admit(1)
        assert clock.slept == [LONGEST_NAMED_S] * 2


async def test_answers_raise_the_limit_additively():
    pace, _ = paced()
    pace.settle(await pace.admit(4), answered=0, retry_in_s=1.0)
    assert pace.limit == 2
    for limit in (3, 4, 5):
        while pace.limit < limit:
            pace.settle(await pace.admit(1), answered=1, retry_in_s=None)
        assert pace.limit == limit


async def test_waits_without_retry_after_grow_until_an_answer():
    pace, clock = paced()
    for _ in range(4):
        pace.settle(await pace.admit(1), answered=0, retry_in_s=0.0)
    await pace.admit(1)
    assert clock.slept == [1.0, 2.0, 4.0, 8.0] and pace.limit == 1
    pace.settle(1, answered=1, retry_in_s=None)
    pace.settle(await pace.admit(1), answered=0, retry_in_s=0.0)
    await pace.admit(1)
    assert clock.slept[-1] == 1.0


async def test_waiting_caller_is_admitted_when_a_request_ends():
    pace, _ = paced()
    pace.settle(await pace.admit(2), answered=0, retry_in_s=1.0)
    assert await pace.admit(3) == 1
    second = asyncio.create_task(pace.admit(3))
    await asyncio.sleep(0)
    assert not second.done()
    pace.settle(1, answered=1, retry_in_s=None)
    # One answer at a limit of one has made it two.
    assert await second == 2


async def test_always_refusing_endpoint_gets_only_periodic_probes():
    pace, clock = paced()
    for _ in range(MOST_IN_A_ROW):
        assert not pace.is_exhausted
        pace.settle(await pace.admit(1), answered=0, retry_in_s=0.0)
    slept = len(clock.slept)
    assert pace.is_exhausted and await pace.admit(5) == 0 and len(clock.slept) == slept
    clock.now += LONGEST_WAIT_S
    assert await pace.admit(5) == 1
    pace.settle(1, answered=1, retry_in_s=None)
    assert not pace.is_exhausted


async def test_pools_of_one_endpoint_share_a_rate_limiter():
    assert pace_of("http://a/v1") is pace_of("http://a/v1/")
    assert pace_of("http://a/v1") is not pace_of("http://b/v1")
