"""Group-relative advantages and groups with signal, against hand-computed numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.algorithms.advantages import decoupled_advantages, group_advantages, unit_scale
from hamr.algorithms.dynamic_sampling import carries_signal
from hamr.algorithms.overlong import overlong_penalty

rewards = st.lists(st.one_of(st.none(), st.floats(-10, 10, width=32)), max_size=12)


def test_advantages_use_the_mean_and_standard_deviation_of_the_group() -> None:
    # mean 1.5, deviations -1.5 -0.5 0.5 1.5, variance (2.25 + 0.25 + 0.25 + 2.25) / 4 = 1.25
    expected = [d / math.sqrt(1.25) for d in (-1.5, -0.5, 0.5, 1.5)]
    assert group_advantages([0.0, 1.0, 2.0, 3.0], normalize_std=True, eps=0.0) == pytest.approx(expected)


def test_advantages_without_std_normalisation_keep_the_scale() -> None:
    assert group_advantages([0.0, 1.0, 2.0, 3.0], normalize_std=False) == [-1.5, -0.5, 0.5, 1.5]


def test_failed_scoring_is_excluded_from_the_baseline_and_gets_zero() -> None:
    # As a 0.0 it would have moved the mean from 0.75 to 0.5 and been punished for the scorer's fault.
    assert group_advantages([1.0, None, 0.5], normalize_std=False) == [0.25, 0.0, -0.25]


@pytest.mark.parametrize("group", [[], [None], [3.0], [None, 2.0, None], [1.0, 1.0, 1.0], [0.1, 0.1, None, 0.1]])
def test_groups_without_differences_get_exact_zeros(group: list[float | None]) -> None:
    assert group_advantages(group, normalize_std=True) == [0.0] * len(group)
    assert not carries_signal(group, tolerance=1e-6)


def test_non_finite_reward_is_rejected() -> None:
    with pytest.raises(ValueError, match="finite"):
        group_advantages([1.0, math.nan])


@given(rewards)
def test_advantages_cancel_within_a_group(group: list[float | None]) -> None:
    assert math.fsum(group_advantages(group, normalize_std=False)) == pytest.approx(0.0, abs=1e-6)


@given(rewards, st.floats(-5, 5, width=16))
def test_advantages_are_invariant_to_a_reward_shift(group: list[float | None], shift: float) -> None:
    moved = [None if r is None else r + shift for r in group]
    assert group_advantages(moved, normalize_std=False) == pytest.approx(
        group_advantages(group, normalize_std=False), abs=1e-5
    )


def test_signal_requires_a_difference_above_the_tolerance() -> None:
    assert carries_signal([0.0, 0.02], tolerance=0.01)
    assert not carries_signal([0.0, 0.01], tolerance=0.01)
    assert carries_signal([0.0, None, 1.0], tolerance=0.01)


def test_overlong_penalty_is_zero_then_linear_then_minus_one() -> None:
    assert [overlong_penalty(n, 64, 16) for n in (1, 48, 49, 56, 64, 900)] == [0.0, 0.0, -1 / 16, -0.5, -1.0, -1.0]


@pytest.mark.parametrize("cache", [0, 65])
def test_overlong_cache_must_be_within_the_limit(cache: int) -> None:
    with pytest.raises(ValueError, match="cache"):
        overlong_penalty(10, 64, cache)


def test_std_floor_shrinks_only_advantages_of_near_equal_rewards() -> None:
    near = [1.28] * 7 + [1.17]
    assert group_advantages(near)[-1] == pytest.approx(-2.65, abs=0.01)
    floored = group_advantages(near, std_floor=0.2)
    assert floored[-1] == pytest.approx(-0.48, abs=0.01) and sum(floored) == pytest.approx(0.0, abs=1e-9)
    assert group_advantages([0.0, 1.0], std_floor=0.2) == group_advantages([0.0, 1.0])


# --- decoupled by component (GDPO) ---------------------------------------------------------------

values = st.lists(st.one_of(st.none(), st.floats(-10, 10, width=16)), min_size=3, max_size=3)
components = st.lists(st.tuples(st.sampled_from([0.25, 1.0, 3.0]), values), min_size=1, max_size=4)


def test_each_component_is_normalised_before_the_sum() -> None:
    # Two binary rewards as in the paper's Figure 2: (0, 1), (0, 2) and (1, 1) have totals whose groups of two normalise
    # to the same advantages, and decoupled ones that differ.
    totals = [[0.0, 1.0], [0.0, 2.0]]
    assert group_advantages(totals[0]) == pytest.approx(group_advantages(totals[1]), abs=1e-5)
    one = decoupled_advantages([(1.0, [0.0, 1.0]), (1.0, [0.0, 0.0])])
    both = decoupled_advantages([(1.0, [0.0, 1.0]), (1.0, [0.0, 1.0])])
    assert one == pytest.approx([-1.0, 1.0], abs=1e-5) and both == pytest.approx([-2.0, 2.0], abs=1e-5)


@given(components, st.floats(0.5, 20, width=16))
def test_the_scale_of_a_component_does_not_matter(group: list[tuple[float, list[float | None]]], factor: float) -> None:
    (weight, first), *others = [(w, [None if v is None else round(v, 1) for v in values]) for w, values in group]
    scaled = [None if v is None else factor * v for v in first]
    expected = decoupled_advantages([(weight, first), *others])
    assert decoupled_advantages([(weight, scaled), *others]) == pytest.approx(expected, abs=1e-3)


@given(values, st.sampled_from([0.25, 1.0, 3.0]))
def test_one_component_alone_has_its_weighted_group_advantages(group: list[float | None], weight: float) -> None:
    expected = [weight * a for a in group_advantages(group)]
    assert decoupled_advantages([(weight, group), (0.0, [1.0, 2.0, 3.0])]) == expected


def test_response_without_a_component_value_gets_zero_for_the_component() -> None:
    assert decoupled_advantages([(1.0, [None, 0.0, 1.0]), (2.0, [0.0, None, None])]) == pytest.approx(
        [0.0, -1.0, 1.0], abs=1e-5
    )


@given(st.lists(st.floats(-10, 10, width=16), min_size=1, max_size=9))
def test_the_scale_of_a_batch_is_one(batch: list[float]) -> None:
    batch = [a - math.fsum(batch) / len(batch) for a in batch]
    scaled = [unit_scale(batch) * a for a in batch]
    std = math.sqrt(math.fsum(a * a for a in scaled) / len(scaled))
    assert std == pytest.approx(1.0 if any(abs(a) > 0.01 for a in batch) else std, abs=1e-2)


def test_a_batch_without_signal_keeps_its_zeros() -> None:
    assert [unit_scale([0.0, 0.0]) * a for a in (0.0, 0.0)] == [0.0, 0.0]
    assert math.isfinite(unit_scale([]))
