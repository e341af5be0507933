"""Seeds x items: differences, intervals and verdicts, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.evaluation.ordering import Difference, difference, mean_of, seed_difference, verdict


def interval(low: float | None, high: float | None) -> Difference:
    return Difference(mean=0.0, low=low, high=high, seeds=2, items=3)


def test_only_what_both_have_counts() -> None:
    a = {0: {"x": 1.0, "y": 0.0, "z": None}, 1: {"x": 1.0, "y": 1.0, "z": 1.0}, 2: {"x": 0.0}}
    b = {0: {"x": 0.0, "y": 0.0, "z": 0.0}, 1: {"x": 0.0, "y": 1.0, "z": 0.0}}
    found = difference(a, b, resamples=200, seed=0)
    # Seeds 0 and 1, items x and y: (1, 0) and (1, 0).
    assert (found.mean, found.seeds, found.items) == (0.5, 2, 2)


def test_the_items_spread_the_interval_with_one_seed() -> None:
    a = {0: {str(i): float(i % 2) for i in range(100)}}
    b = {0: {str(i): 0.0 for i in range(100)}}
    found = difference(a, b, resamples=4000, seed=0)
    # The standard error of a share of one half among 100 is 0.05.
    assert found.mean == 0.5
    assert (found.low, found.high) == pytest.approx((0.402, 0.598), abs=0.02)


def test_the_seeds_spread_it_too() -> None:
    b = {s: {str(i): 0.0 for i in range(10)} for s in (0, 1)}
    a = {s: {str(i): float(s) for i in range(10)} for s in (0, 1)}
    found = difference(a, b, resamples=2000, seed=0)
    # Of two seeds, both draws are the one with 0 a quarter of the time, and the one with 1 another.
    assert (found.mean, found.low, found.high) == (0.5, 0.0, 1.0)
    assert verdict(found, 1.0) == "not decided"


def test_arms_with_nothing_in_common() -> None:
    nothing = Difference(mean=None, low=None, high=None, seeds=0, items=0)
    assert difference({0: {"x": 1.0}}, {1: {"x": 1.0}}, resamples=10, seed=0) == nothing
    found = difference({0: {"x": 1.0}}, {0: {"y": 1.0}}, resamples=10, seed=0)
    assert (found.mean, found.seeds, found.items) == (None, 1, 0)
    assert seed_difference({0: 1.0}, {1: 1.0}) == nothing


def test_seed_difference_is_students() -> None:
    found = seed_difference({0: 1.0, 1: 2.0, 2: 3.0}, {0: 0.0, 1: 0.0, 2: 0.0})
    # Mean 2, deviation 1, t(2) = 4.3027: 2 +- 4.3027 / sqrt(3).
    assert found.mean == pytest.approx(2.0)
    assert (found.low, found.high) == pytest.approx((-0.4842, 4.4842), abs=1e-4)


@pytest.mark.parametrize(
    ("low", "high", "expected", "said"),
    [
        (0.1, 0.2, 0.3, "reproduced"),
        (0.1, 0.2, -0.3, "contradicted"),
        (-0.2, -0.1, -0.3, "reproduced"),
        (-0.2, -0.1, 0.3, "contradicted"),
        (-0.1, 0.2, 0.3, "not decided"),
        (0.0, 0.2, 0.3, "not decided"),
        (None, None, 0.3, "not decided"),
        (0.1, 0.2, 0.0, None),
    ],
)
def test_verdicts(low: float | None, high: float | None, expected: float, said: str | None) -> None:
    assert verdict(interval(low, high), expected) == said


def test_mean_of_is_the_seeds_mean_of_the_items_means() -> None:
    assert mean_of({0: {"x": 1.0, "y": 0.0}, 1: {"x": 1.0, "y": None}}) == 0.75
    assert mean_of({0: {"x": None}}) is None


scores = st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1), min_size=1)
runs = st.dictionaries(st.integers(0, 3), scores, min_size=1)


@given(runs, runs)
def test_a_difference_turned_round_is_its_negative(a: dict, b: dict) -> None:
    one, other = (difference(*arms, resamples=50, seed=3) for arms in ((a, b), (b, a)))
    assert (one.seeds, one.items) == (other.seeds, other.items)
    if one.mean is None:
        assert other.mean is None
        return
    assert one.mean == pytest.approx(-other.mean, abs=1e-9)
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low), abs=1e-9)


@given(runs)
def test_an_arm_does_not_differ_from_itself(a: dict) -> None:
    found = difference(a, a, resamples=20, seed=0)
    assert found.mean is None or (found.mean, found.low, found.high) == (0.0, 0.0, 0.0)
