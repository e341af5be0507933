"""Anytime-valid bounds of a mean: coverage at all times, width, and the number of audits that a bound needs."""

import json

import numpy as np
import pytest

from hamr.calibration.mean_bound import MeanBound, audits_needed


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
    """60 runs of a skewed gap; the thousand runs are in benchmarks/hacking.py."""
    rng = np.random.default_rng(0)
    share = np.linspace(0.05, 0.4, 150) if moving else np.full(150, 0.15)
    missed = 0
    for _ in range(60):
        fooled = rng.random(150) < share
        missed += ever_missed(np.where(fooled, 0.8, -0.1), 0.9 * share - 0.1)
    assert missed <= 6


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
