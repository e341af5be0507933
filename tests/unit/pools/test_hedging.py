"""Hedging: the delay, the budget, and the winning answer."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.config.faults import HedgeConfig
from hamr.pools.hedging import Hedger


def still():
    return 0.0


def hedger(clock=still, **config):
    return Hedger(HedgeConfig.model_validate({"floor_s": 0.01, "min_count": 1, "window": 100} | config), clock)


def test_hedge_delay_is_a_quantile_with_a_floor():
    times = hedger(quantile=0.5, floor_s=2.0, min_count=3, window=5)
    for seconds in (1.0, 1.5):
        times.record_served(seconds)
    assert times.late_after_s() is None
    times.record_served(1.0)
    assert times.late_after_s() == 2.0
    for seconds in (10.0, 20.0, 30.0):
        times.record_served(seconds)
    assert times.late_after_s() == 10.0, "the median of the last five: 1.5, 1, 10, 20, 30"


def test_hedge_budget_is_earned_by_requests():
    budget = hedger(budget_frac=0.25, burst=3)
    assert not budget.spend(1)
    budget.record_sent(4)
    assert not budget.spend(2)
    assert budget.spend(1)
    assert not budget.spend(1)
    budget.record_sent(1000)
    assert budget.budget == 3, "no more than `burst` is saved up"
    assert budget.spend(3)
    assert not budget.spend(1)
    assert budget.spent == 4


@given(
    st.floats(0.01, 1.0),
    st.integers(1, 20),
    st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=200),
)
def test_hedge_budget_is_never_exceeded(frac, burst, events):
    budget = hedger(budget_frac=frac, burst=burst)
    asked = 0
    for is_question, count in events:
        if is_question:
            asked += count
            budget.record_sent(count)
        else:
            before = budget.budget
            assert budget.spend(count) == (count <= before)
        assert budget.spent <= frac * asked + 1e-9
        assert -1e-9 <= budget.budget <= burst + 1e-9


class Try:
    """One try of a request: answers or raises on command, and records whether it was cancelled."""

    def __init__(self, answer):
        self.answer, self.go, self.begun, self.cancelled = answer, asyncio.Event(), asyncio.Event(), False

    async def __call__(self):
        self.begun.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def ready(**config):
    """One that has seen requests of no time and has budget for ten questions."""
    known = hedger(budget_frac=1.0, **config)
    known.record_served(0.0)
    known.record_sent(10)
    return known


async def test_a_quick_answer_is_not_hedged():
    first, second = Try("a"), Try("b")
    first.go.set()
    raced = await ready(floor_s=60.0).first(first, second, 4)
    assert (raced.answer, raced.hedged, raced.second) == ("a", False, False)
    assert not second.begun.is_set()


async def test_late_request_is_hedged_and_the_loser_cancelled():
    known, first, second = ready(), Try("a"), Try("b")
    race = asyncio.create_task(known.first(first, second, 4))
    await second.begun.wait()
    second.go.set()
    raced = await race
    assert (raced.answer, raced.hedged, raced.second) == ("b", True, True)
    assert (first.cancelled, second.cancelled, known.spent) == (True, False, 4)


async def test_first_request_may_win_after_hedging():
    first, second = Try("a"), Try("b")
    race = asyncio.create_task(ready().first(first, second, 4))
    await second.begun.wait()
    first.go.set()
    raced = await race
    assert (raced.answer, raced.hedged, raced.second) == ("a", True, False)
    assert second.cancelled


async def test_no_hedge_without_budget_or_latency_history():
    for known, questions in ((ready(), 11), (hedger(), 1)):
        first, second = Try("a"), Try("b")
        race = asyncio.create_task(known.first(first, second, questions))
        await first.begun.wait()
        await asyncio.sleep(0.05)
        assert not second.begun.is_set()
        first.go.set()
        assert (await race).answer == "a"
        assert known.spent == 0


async def test_error_is_raised_before_hedging_and_ignored_after():
    first, second = Try(RuntimeError("first")), Try("b")
    first.go.set()
    with pytest.raises(RuntimeError, match="first"):
        await ready(floor_s=60.0).first(first, second, 1)
    assert not second.begun.is_set()
    first.go.clear()
    race = asyncio.create_task(ready().first(first, second, 1))
    await second.begun.wait()
    first.go.set()
    await asyncio.sleep(0.02)
    assert not race.done()
    second.go.set()
    assert (await race).answer == "b"


async def test_first_error_is_raised_if_both_requests_fail():
    first, second = Try(RuntimeError("first")), Try(RuntimeError("second"))
    race = asyncio.create_task(ready().first(first, second, 1))
    await second.begun.wait()
    second.go.set()
    await asyncio.sleep(0.02)
    first.go.set()
    with pytest.raises(RuntimeError, match="first"):
        await race


async def test_cancellation_cancels_both_requests():
    first, second = Try("a"), Try("b")
    race = asyncio.create_task(ready().first(first, second, 1))
    await second.begun.wait()
    race.cancel()
    with pytest.raises(asyncio.CancelledError):
        await race
    assert first.cancelled and second.cancelled


@given(st.lists(st.sampled_from(["quick", "first", "second", "both"]), min_size=1, max_size=25), st.floats(0.1, 1.0))
def test_every_request_has_one_answer_and_one_recorded_time(script, frac):
    async def run():
        known = hedger(budget_frac=frac, floor_s=0.001, burst=5)
        known.record_served(0.0)
        for number, who in enumerate(script):
            first, second = Try(("first", number)), Try(("second", number))
            known.record_sent(1)
            if who == "quick":
                first.go.set()
            race = asyncio.create_task(known.first(first, second, 1))
            if who != "quick":
                # Where the budget has no room there is no second try to wait for.
                await asyncio.wait([asyncio.create_task(second.begun.wait())], timeout=0.01)
                for one in (first, second):
                    if who == "both" or one.answer[0] == who or not second.begun.is_set():
                        one.go.set()
            raced = await race
            assert raced.answer[1] == number
            assert raced.hedged == second.begun.is_set()
            assert raced.second == (raced.answer[0] == "second")
            assert first.cancelled == (raced.second and not first.go.is_set())
            assert known.spent <= frac * (number + 1) + 1e-9

    asyncio.run(run())
