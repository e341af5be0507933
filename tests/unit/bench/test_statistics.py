from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.bench.statistics import cohen_kappa, exact_agreement, mean_interval, sign_flip_p

LABELS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1, max_size=30)


def test_mean_interval_contains_the_mean_and_shrinks_to_it():
    found = mean_interval([0.0, 1.0] * 50, resamples=4000, seed=1)
    assert found.mean == 0.5 and found.n == 100
    # A mean of 100 draws of a fair coin: standard error 0.05; the middle 90 % would end at 0.418 and 0.582.
    assert (found.low, found.high) == (pytest.approx(0.402, abs=0.011), pytest.approx(0.598, abs=0.011))
    constant = mean_interval([0.25] * 4, resamples=50, seed=1)
    assert (constant.low, constant.mean, constant.high) == (0.25, 0.25, 0.25)
    nothing = mean_interval([], resamples=50, seed=1)
    assert (nothing.low, nothing.mean, nothing.high, nothing.n) == (None, None, None, 0)


def test_the_seed_decides_the_interval():
    values = [i / 7 for i in range(20)]
    assert mean_interval(values, resamples=100, seed=3) == mean_interval(values, resamples=100, seed=3)
    assert mean_interval(values, resamples=100, seed=3) != mean_interval(values, resamples=100, seed=4)


def test_few_pairs_use_the_exact_test():
    # Of the 8 signs, +++ and --- reach 6; with one 0 among them its sign does not matter.
    assert sign_flip_p([1.0, 2.0, 3.0], resamples=10, seed=0) == 2 / 8
    assert sign_flip_p([1.0, 2.0, 0.0], resamples=10, seed=0) == 4 / 8
    # |-1 + 2 + 3| = 4: reached by +++ (6), -++ (4) and their mirror images.
    assert sign_flip_p([-1.0, 2.0, 3.0], resamples=10, seed=0) == 4 / 8
    assert sign_flip_p([0.0, 0.0], resamples=10, seed=0) == 1.0
    with pytest.raises(ValueError, match="at least one pair"):
        sign_flip_p([], resamples=10, seed=0)


def test_many_pairs_use_the_sampled_test():
    assert sign_flip_p([1.0] * 40, resamples=999, seed=0) == 1 / 1000
    assert sign_flip_p([1.0, -1.0] * 20, resamples=999, seed=0) == 1.0


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=9))
def test_sign_flip_test_is_symmetric(differences):
    forwards = sign_flip_p(differences, resamples=10, seed=0)
    assert forwards == sign_flip_p([-d for d in differences], resamples=10, seed=0)
    assert 0.0 < forwards <= 1.0


def test_kappa_matches_hand_computed_values():
    # 20 yes-yes, 5 yes-no, 10 no-yes, 15 no-no: p_o = 0.7, p_e = 0.5 * 0.6 + 0.5 * 0.4 = 0.5.
    a = "y" * 25 + "n" * 25
    b = "y" * 20 + "n" * 5 + "y" * 10 + "n" * 15
    assert exact_agreement(a, b) == 0.7
    assert cohen_kappa(a, b) == pytest.approx(0.4)
    assert cohen_kappa("yn", "ny") == -1.0
    assert cohen_kappa("", "") is None and exact_agreement("", "") is None


@given(LABELS)
def test_kappa_is_symmetric_and_at_most_the_agreement(pairs):
    a, b = zip(*pairs, strict=True)
    kappa = cohen_kappa(a, b)
    if kappa is None:
        assert len(set(a) | set(b)) == 1
        return
    assert kappa == pytest.approx(cohen_kappa(b, a))
    assert -1.0 - 1e-9 <= kappa <= exact_agreement(a, b) + 1e-9


@given(LABELS)
def test_kappa_is_invariant_to_item_order(pairs):
    for shuffled in itertools.islice(itertools.permutations(pairs), 3):
        a, b = zip(*pairs, strict=True)
        c, d = zip(*shuffled, strict=True)
        assert cohen_kappa(a, b) == pytest.approx(cohen_kappa(c, d))
