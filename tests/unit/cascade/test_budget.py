"""The judge budget: it is reached if possible, in bounded steps, without oscillation at ties."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.cascade.budget import ReplyWindow, balance, balance_interval, without_audits

START = (0.68, 0.98)
TOLERANCE = 0.02


def replies(scores):
    return ReplyWindow.of(list(scores))


def share_of(evidence, ends):
    return evidence.escalated_share(*(np.array([end]) for end in ends))[0]


def settle(evidence, target, *, start=START, below=None, max_move=0.05, steps=60):
    wanted = {"share": target, "tolerance": TOLERANCE, "max_move": max_move}
    below = balance(evidence, start) if below is None else below
    path = [start]
    for _ in range(steps):
        path.append(balance_interval(evidence, path[-1], below=below, **wanted))
    return path


distinct = st.lists(st.integers(0, 10**6), min_size=100, max_size=300, unique=True).map(
    lambda ns: [n / 10**6 for n in ns]
)
heaped = st.lists(st.sampled_from([0.0, 0.2, 0.5, 0.97, 1.0]), min_size=1, max_size=100)
scores = st.floats(0, 1)
several = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)).map(sorted), min_size=1, max_size=100)


@given(distinct, scores, scores)
def test_distinct_scores_reach_any_target_within_tolerance(drawn, target, below):
    evidence = replies([(s, s) for s in drawn])
    path = settle(evidence, target, below=below, steps=40)
    assert share_of(evidence, path[-1]) == pytest.approx(target, abs=TOLERANCE + 2 / len(drawn))
    assert path[-1] == path[-10], "it stays there"


@given(
    st.one_of(heaped.map(lambda xs: [(x, x) for x in xs]), several),
    st.floats(0, 1),
    st.floats(0.06, 1),
)
def test_interval_converges_with_ties_and_several_references(drawn, target, max_move):
    evidence = replies(drawn)
    path = settle(evidence, target, max_move=max_move, steps=40)
    for now, then in pairwise(path):
        assert 0.0 <= then[0] <= then[1] <= 1.0
        assert max(abs(then[0] - now[0]), abs(then[1] - now[1])) <= max_move + 1e-12
    assert path[-1] == path[-2] == path[-3]
    assert abs(share_of(evidence, path[-1]) - target) <= abs(share_of(evidence, START) - target) + TOLERANCE


@pytest.mark.parametrize(("target", "share"), [(0.3, 0.0), (0.5, 0.0), (0.8, 1.0)])
def test_tied_scores_move_together_to_the_nearer_side(target, share):
    evidence = replies([(0.8, 0.8)] * 50)
    path = settle(evidence, target)
    assert share_of(evidence, path[-1]) == share
    assert len(set(path[-20:])) == 1


def test_unreachable_target_does_not_cause_oscillation():
    rng = np.random.default_rng(0)
    now, seen = START, set()
    below = balance(replies([(s, s) for s in rng.choice([0.1, 0.8], 400)]), START)
    for step in range(40):
        # Half of the replies tie at 0.1: the share is about 0 or about a half, and a quarter is wanted.
        evidence = replies([(s, s) for s in rng.choice([0.1, 0.8], 400)])
        now = balance_interval(evidence, now, share=0.25, below=below, tolerance=0.1, max_move=1.0)
        if step > 2:
            seen.add(now)
    assert len(seen) == 1


@given(several, scores, scores)
def test_reply_with_references_on_both_sides_counts_once(drawn, one, other):
    a, b = sorted((one, other))
    outside = sum(low < a or high > b for low, high in drawn)
    assert share_of(replies(drawn), (a, b)) == pytest.approx(outside / len(drawn))


def test_new_scores_of_the_same_distribution_keep_the_budget():
    rng = np.random.default_rng(1)
    now = START
    for _ in range(30):
        evidence = replies([(s, s) for s in rng.beta(0.5, 0.5, 1000)])
        now = balance_interval(evidence, now, share=0.3, below=0.9, tolerance=TOLERANCE, max_move=0.05)
    fresh = replies([(s, s) for s in rng.beta(0.5, 0.5, 20_000)])
    assert share_of(fresh, now) == pytest.approx(0.3, abs=TOLERANCE + 0.03)


def test_the_balance_between_the_ends_is_kept():
    scores = np.linspace(0.0, 1.0, 1001)
    evidence = replies([(s, s) for s in scores])
    assert balance(evidence, (0.3, 0.9)) == pytest.approx(0.75, abs=0.01)
    a, b = settle(evidence, 0.2, start=(0.3, 0.9))[-1]
    assert (a, b) == (pytest.approx(0.15, abs=0.012), pytest.approx(0.95, abs=0.012))
    assert balance(evidence, (0.0, 1.0)) == 0.5


def test_interval_end_at_its_target_does_not_move():
    evidence = replies([(s, s) for s in np.linspace(0.2, 0.9, 500)])
    a, b = settle(evidence, 0.3, start=(0.55, 0.98))[-1]
    assert b == 0.98, "nobody lies above: the highest score that was seen is no reason to come down to it"
    assert share_of(evidence, (a, b)) == pytest.approx(0.3, abs=TOLERANCE)


@given(st.floats(0, 1), st.floats(0, 0.99))
def test_audits_count_towards_the_budget(judge_frac, audit_frac):
    share = without_audits(judge_frac, audit_frac)
    assert 0.0 <= share <= 1.0
    assert share + (1.0 - share) * audit_frac == pytest.approx(max(judge_frac, audit_frac))
