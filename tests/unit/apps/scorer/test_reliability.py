"""Accuracy, reliability and expected calibration error, against hand-computed values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.apps.scorer.reliability import Bin, calibration_error, quality, reliability

pairs = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40)


def test_bins_match_hand_computed_values() -> None:
    """0.05 and 0.09 are in the first bin, 0.5 opens its bin, and 1.0 belongs to the last."""
    bins = reliability([0.05, 0.09, 0.5, 0.95, 1.0], [False, True, True, True, True])
    assert [(b.low, b.high, b.n) for b in bins] == [(0.0, 0.1, 2), (0.5, 0.6, 1), (0.9, 1.0, 2)]
    assert [b.score for b in bins] == pytest.approx([0.07, 0.5, 0.975])
    assert [b.frequency for b in bins] == [0.5, 1.0, 1.0]
    assert calibration_error(bins) == pytest.approx((2 * 0.43 + 1 * 0.5 + 2 * 0.025) / 5)


def test_confident_wrong_scorer_has_maximum_calibration_error() -> None:
    assert quality([1.0, 0.0], [False, True]).calibration_error == 1.0
    perfect = quality([1.0, 0.0], [True, False])
    assert (perfect.accuracy, perfect.auc, perfect.calibration_error) == (1.0, 1.0, 0.0)


def test_calibrated_scorer_may_be_inaccurate() -> None:
    found = quality([0.5] * 4, [True, True, False, False])
    assert (found.accuracy, found.auc, found.calibration_error) == (0.5, 0.5, 0.0)


def test_score_of_one_half_counts_as_yes() -> None:
    found = quality([0.5, 0.2, 0.2, 0.8], [False, False, True, True])
    assert (found.accuracy, found.precision, found.recall) == (0.5, 0.5, 0.5)


def test_one_class_has_no_auc() -> None:
    assert quality([0.2, 0.8], [True, True]).auc is None


@given(pairs)
def test_each_score_is_in_one_bin_and_error_is_in_unit_range(rows: list[tuple[float, bool]]) -> None:
    found = quality([score for score, _ in rows], [label for _, label in rows])
    assert sum(b.n for b in found.bins) == found.n == len(rows)
    assert 0.0 <= found.calibration_error <= 1.0 + 1e-12
    assert all(b.low - 1e-12 <= b.score <= b.high + 1e-12 for b in found.bins)


@pytest.mark.parametrize("scores", [[], [1.1], [-0.1], [float("nan")]])
def test_invalid_scores_are_rejected(scores: list[float]) -> None:
    with pytest.raises(ValueError):
        quality(scores, [True] * len(scores))


def test_calibration_error_weights_bins_by_count() -> None:
    bins = [Bin(low=0, high=0.1, n=3, score=0.0, frequency=0.4), Bin(low=0.9, high=1, n=1, score=1.0, frequency=1.0)]
    assert calibration_error(bins) == pytest.approx(0.3)
