"""Accuracy, reliability and the expected calibration error, by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.apps.scorer.reliability import Bin, calibration_error, quality, reliability

pairs = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40)


def test_bins_by_hand() -> None:
    """0.05, 0.09 | 0.5 opens its bin | 1.0 belongs to the last."""
    bins = reliability([0.05, 0.09, 0.5, 0.95, 1.0], [False, True, True, True, True])
    assert [(b.low, b.high, b.n) for b in bins] == [(0.0, 0.1, 2), (0.5, 0.6, 1), (0.9, 1.0, 2)]
    assert [b.score for b in bins] == pytest.approx([0.07, 0.5, 0.975])
    assert [b.frequency for b in bins] == [0.5, 1.0, 1.0]
    assert calibration_error(bins) == pytest.approx((2 * 0.43 + 1 * 0.5 + 2 * 0.025) / 5)


def test_a_scorer_that_is_sure_and_wrong_is_as_far_off_as_can_be() -> None:
    assert quality([1.0, 0.0], [False, True]).calibration_error == 1.0
    perfect = quality([1.0, 0.0], [True, False])
    assert (perfect.accuracy, perfect.auc, perfect.calibration_error) == (1.0, 1.0, 0.0)


def test_a_calibrated_scorer_need_not_be_accurate() -> None:
    found = quality([0.5] * 4, [True, True, False, False])
    assert (found.accuracy, found.auc, found.calibration_error) == (0.5, 0.5, 0.0)


def test_one_half_is_a_yes_in_every_figure() -> None:
    found = quality([0.5, 0.2, 0.2, 0.8], [False, False, True, True])
    assert (found.accuracy, found.precision, found.recall) == (0.5, 0.5, 0.5)


def test_one_class_has_no_auc() -> None:
    assert quality([0.2, 0.8], [True, True]).auc is None


@given(pairs)
def test_every_score_is_in_one_bin_and_the_error_is_a_share(rows: list[tuple[float, bool]]) -> None:
    found = quality([score for score, _ in rows], [label for _, label in rows])
    assert sum(b.n for b in found.bins) == found.n == len(rows)
    assert 0.0 <= found.calibration_error <= 1.0 + 1e-12
    assert all(b.low - 1e-12 <= b.score <= b.high + 1e-12 for b in found.bins)


@pytest.mark.parametrize("scores", [[], [1.1], [-0.1], [float("nan")]])
def test_what_is_no_score_is_refused(scores: list[float]) -> None:
    with pytest.raises(ValueError):
        quality(scores, [True] * len(scores))


def test_the_error_weighs_bins_by_what_they_hold() -> None:
    bins = [Bin(low=0, high=0.1, n=3, score=0.0, frequency=0.4), Bin(low=0.9, high=1, n=1, score=1.0, frequency=1.0)]
    assert calibration_error(bins) == pytest.approx(0.3)
