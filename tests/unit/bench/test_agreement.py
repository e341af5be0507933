from __future__ import annotations

import pytest

from hamr.bench.agreement import between, level, with_people


def test_human_agreement_matches_hand_computed_values():
    ratings = [(1.0, "yes"), (0.0, "no"), (0.5, "part"), (1.0, "yes"), (0.0, "no"), None]
    people = ["yes", "no", "yes", "no", "no", "yes"]
    found = with_people(ratings, people, resamples=50, seed=0)
    assert found.accuracy.mean == pytest.approx(3 / 5) and found.missing == 1
    # One half agrees with no label: yes, no and no of five are right.
    assert found.clear_accuracy.mean == pytest.approx(3 / 5)
    # p_e = (2 * 2 + 1 * 0 + 2 * 3) / 25 = 0.4.
    assert found.kappa == pytest.approx((0.6 - 0.4) / 0.6)
    # Ranks 4.5 1.5 3 4.5 1.5 and 4.5 2 4.5 2 2: products sum to 3.75, squares to 9 and 7.5.
    assert found.spearman.rho == pytest.approx(3.75 / (9 * 7.5) ** 0.5)


def test_partial_pairs_are_excluded_from_clear_accuracy():
    found = with_people([(0.5, "part"), (0.9, "yes")], ["part", "yes"], resamples=10, seed=0)
    assert (found.accuracy.mean, found.clear_accuracy.mean, found.clear_accuracy.n) == (1.0, 1.0, 1)


def test_figures_need_ratings_with_variance():
    found = with_people([None, None], ["yes", "no"], resamples=10, seed=0)
    assert (found.accuracy.mean, found.kappa, found.spearman.rho, found.missing) == (None, None, None, 2)
    constant = with_people([(1.0, "yes"), (1.0, "yes")], ["yes", "no"], resamples=10, seed=0)
    assert (constant.accuracy.mean, constant.spearman.rho) == (0.5, None)


def test_judges_are_compared_on_items_rated_by_both():
    found = between(["yes", "no", None, "part"], ["yes", "yes", "no", "part"])
    # p_o = 2/3, p_e = (1 * 2 + 1 * 0 + 1 * 1) / 9 = 1/3.
    assert (found.n, found.same) == (3, pytest.approx(2 / 3)) and found.kappa == pytest.approx(0.5)
    assert between([None], ["yes"]).n == 0


@pytest.mark.parametrize(
    ("score", "said"), [(1.0, "yes"), (0.76, "yes"), (0.75, "part"), (0.5, "part"), (0.25, "part"), (0.0, "no")]
)
def test_scores_map_to_levels(score, said):
    assert level(score) == said
