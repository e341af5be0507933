"""Learning rate schedules."""

from __future__ import annotations

import pytest

from hamr.algorithms.schedule import learning_rate


def rates(total: int, **settings: object) -> list[float]:
    return [learning_rate(s, total_steps=total, **settings) for s in range(total)]  # type: ignore[arg-type]


def test_constant_schedule_keeps_the_peak_rate() -> None:
    assert rates(3, peak=5e-6) == [5e-6] * 3


def test_warm_up_rises_linearly_from_above_zero() -> None:
    assert rates(10, peak=1.0, warmup_frac=0.3) == pytest.approx([0.25, 0.5, 0.75] + [1.0] * 7)


def test_warm_up_of_a_whole_number_of_steps_is_not_rounded_up() -> None:
    """0.07 * 100 is 7.000000000000001 in floating point."""
    assert sum(rate < 1.0 for rate in rates(100, peak=1.0, warmup_frac=0.07)) == 7


def test_cosine_ends_at_the_minimum_and_stays_there() -> None:
    values = rates(5, peak=1.0, schedule="cosine", minimum=0.2)
    # 0.2 + 0.8 (1 + cos(pi k / 4)) / 2
    assert values == pytest.approx([1.0, 0.882843, 0.6, 0.317157, 0.2], abs=1e-6)
    assert learning_rate(99, peak=1.0, total_steps=5, schedule="cosine", minimum=0.2) == pytest.approx(0.2)


def test_warm_up_then_cosine_peaks_right_after_the_warm_up() -> None:
    values = rates(6, peak=1.0, schedule="cosine", warmup_frac=0.2)
    assert values == pytest.approx([1 / 3, 2 / 3, 1.0, 0.75, 0.25, 0.0], abs=1e-9)


def test_a_single_step_runs_at_the_peak() -> None:
    assert rates(1, peak=1.0, schedule="cosine") == [1.0]


def test_minimum_above_the_peak_is_rejected() -> None:
    with pytest.raises(ValueError, match="min_learning_rate"):
        learning_rate(0, peak=1e-6, total_steps=2, schedule="cosine", minimum=1e-5)
