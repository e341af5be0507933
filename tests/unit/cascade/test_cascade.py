"""Eq. 4 with the paper's numbers, at and around both ends of the interval."""

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.calibration.cascade import Cascade
from hamr.config.cascade_controller import CascadeConfig
from hamr.errors import ConfigError, MissingScore

PAPER = Cascade(0.68, 0.98, 0.05, 0.72)
BELOW_A, ABOVE_B = math.nextafter(0.68, 0), math.nextafter(0.98, 1)
shares = st.floats(0, 1)


@pytest.mark.parametrize(
    ("s_r", "band"),
    [
        (0.0, "below"),
        (BELOW_A, "below"),
        (0.68, "inside"),
        (0.8, "inside"),
        (0.98, "inside"),
        (ABOVE_B, "above"),
        (1.0, "above"),
    ],
)
def test_interval_includes_both_ends(s_r, band):
    assert PAPER.band(s_r) == band
    assert PAPER.needs_judge(s_r) is (band != "inside")


@pytest.mark.parametrize(
    ("s_r", "s_j", "expected"),
    [
        (0.5, 1.0, 0.975),  # 0.05 * 0.5 + 0.95 * 1
        (0.5, 0.0, 0.025),
        (0.2, 0.5, 0.485),  # 0.01 + 0.475
        (BELOW_A, 0.5, 0.509),  # 0.034 + 0.475: a jump of 0.171 to the next score
        (0.68, 0.5, 0.68),
        (0.98, 0.5, 0.98),
        (ABOVE_B, 0.5, 0.8456),  # 0.7056 + 0.14: not monotone
        (1.0, 0.0, 0.72),
        (1.0, 1.0, 1.0),
    ],
)
def test_mix_matches_hand_computed_values(s_r, s_j, expected):
    assert PAPER.mix(s_r, s_j) == pytest.approx(expected, abs=1e-12)


def test_config_defaults_match_the_paper():
    assert Cascade.from_config(CascadeConfig()) == PAPER


@pytest.mark.parametrize("s_r", [0.0, BELOW_A, ABOVE_B, 1.0])
def test_missing_judge_score_raises_an_error(s_r):
    with pytest.raises(MissingScore, match="judge"):
        PAPER.mix(s_r)


def test_missing_score_error_can_be_pickled():
    error = MissingScore("gone")
    assert str(pickle.loads(pickle.dumps(error))) == "gone"


@pytest.mark.parametrize("bad", [-1e-9, 1 + 1e-9, math.nan, math.inf, -math.inf])
def test_invalid_scores_are_rejected(bad):
    for refused in (
        lambda: PAPER.band(bad),
        lambda: PAPER.mix(bad, 0.5),
        lambda: PAPER.mix(0.5, bad),
        lambda: PAPER.mix(0.7, bad),
    ):
        with pytest.raises(ValueError, match="not a score"):
            refused()


@pytest.mark.parametrize(
    "bad", [(0.9, 0.5, 0.1, 0.1), (-0.1, 0.5, 0.1, 0.1), (0.1, 0.5, math.nan, 0.1), (0.1, 0.5, 0.1, 1.1)]
)
def test_invalid_cascade_is_rejected(bad):
    with pytest.raises(ConfigError, match="cascade"):
        Cascade(*bad)


@given(shares, shares, shares, shares, shares, shares)
def test_mix_lies_between_its_scores_and_below_its_bound(a, b, w1, w2, s_r, s_j):
    cascade = Cascade(min(a, b), max(a, b), w1, w2)
    r = cascade.mix(s_r, s_j)
    assert min(s_r, s_j) - 1e-12 <= r <= max(s_r, s_j) + 1e-12
    assert r <= cascade.highest(s_r) + 1e-12


def test_degenerate_intervals_escalate_correctly():
    assert not Cascade(0, 1, 0.5, 0.5).needs_judge(0.3)
    assert Cascade(0.5, 0.5, 0.5, 0.5).mix(0.5) == 0.5
    assert Cascade(0.5, 0.5, 0.5, 0.5).needs_judge(0.51)
