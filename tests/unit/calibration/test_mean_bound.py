"""Anytime-valid bounds of a mean: coverage at all times, width, and the number of audits that a bound needs."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.calibration.mean_bound import MeanBound, audits_needed, lower_bound


def ever_missed(values, means):
    """Return True if an interval ever missed the weighted mean of the conditional means so far."""
    bound, weighted = MeanBound(), 0.0
    for value, mean in zip(values, means, strict=True):
        before = bound.weight
        bound.add(value)
        weighted += (bound.weight - before) * mean
        low, high = bound.interval
        if not low <= weighted / bound.weight <= high:
            return True
    return False


@pytest.mark.parametrize("moving", [False, True])
def test_coverage_at_all_times(moving):
    """400 runs of a skewed gap; the thousand runs are in benchmarks/hacking.py."""
    rng = np.random.default_rng(0)
    share = np.linspace(0.05, 0.4, 150) if moving else np.full(150, 0.15)
    missed = 0
    for _ in range(400):
        fooled = rng.random(150) < share
        missed += ever_missed(np.where(fooled, 0.8, -0.1), 0.9 * share - 0.1)
    assert missed <= 20


def test_betting_bound_is_rarely_above_a_mean_that_never_is():
    rng = np.random.default_rng(1)
    above = 0
    for _ in range(200):
        gaps = np.where(rng.random(160) < 0.1, 0.6, -0.01)
        above += lower_bound(gaps) > 0.06 - 0.009
    assert above <= 17, "5 % of the runs, and three standard deviations"


@given(st.lists(st.floats(-1.0, 1.0), max_size=60))
def test_betting_bound_is_within_the_values(values):
    bound = lower_bound(values)
    assert bound == -1.0 if not values else -1.0 <= bound <= max(values) + 1e-6


def test_betting_bound_finds_rare_large_gaps_before_the_interval_does():
    gaps = [0.0, 0.0, 0.0, 0.0, 0.9] * 40
    bound = MeanBound()
    for count, gap in enumerate(gaps, start=1):
        bound.add(gap)
        if lower_bound(gaps[:count]) > 0.05:
            break
    assert count <= 70
    assert bound.interval[0] < 0.0


def test_betting_bound_never_falls():
    gaps = [0.6, 0.0] * 40
    assert lower_bound([*gaps, *[0.0] * 300]) == lower_bound(gaps) > 0.05


def test_interval_shrinks_and_follows_the_spread():
    def width(spread, count):
        bound = MeanBound()
        for i in range(count):
            bound.add(spread * (-1) ** i)
        low, high = bound.interval
        assert low < 0.0 < high
        return high - low

    assert width(0.1, 400) < width(0.1, 100) / 2
    assert width(0.1, 400) < width(0.6, 400)


def test_audits_needed_is_the_first_count_within_the_width():
    count = audits_needed(0.2, 0.2)
    assert count is not None
    bound = MeanBound()
    widths = []
    for i in range(count):
        bound.add(0.2 * (-1) ** (i + 1))
        widths.append(bound.interval[1] - bound.interval[0])
    assert widths[-1] <= 0.4 < widths[-2]
    assert audits_needed(0.01, 0.5, most=100) is None


def test_state_continues_the_sequence():
    bound = MeanBound()
    for value in (0.1, -0.4, 0.9):
        bound.add(value)
    again = MeanBound.of_state(json.loads(json.dumps(bound.state())))
    for one in (bound, again):
        one.add(0.3)
    assert again.interval == bound.interval
