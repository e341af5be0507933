"""The adaptive interval: its measures, its moves and its bounds."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.calibration.cascade import Cascade
from hamr.calibration.ranks import spearman
from hamr.cascade.adaptive_interval import FEWEST, loss, most_trusted
from hamr.cascade.reply_window import Bounds, ReplyWindow, WindowReply

PAPER = Cascade(0.68, 0.98, 0.05, 0.72)


def heard(s_r, s_j, weight=1.0):
    return WindowReply(low=s_r, high=s_r, s_r=s_r, s_j=s_j, weight=weight)


def one(evidence, ends, measure="gap", cascade=PAPER):
    return loss(evidence, np.array([ends]), cascade, measure)[0]


def test_gap_is_the_weighted_mean_inside_the_interval():
    rows = [heard(0.7, 0.6, weight=20.0)] * FEWEST + [heard(0.8, 0.4)] * 20 + [heard(0.2, 1.0)] * 7
    rows.append(WindowReply(low=0.75, high=0.75, s_r=0.75))  # not heard: no part of it
    evidence = ReplyWindow.of(rows)
    assert one(evidence, (0.7, 0.8)) == pytest.approx((20 * 20 * 0.1 + 20 * 0.4) / 420)
    assert one(evidence, (0.7, 0.79)) == pytest.approx(0.1)
    assert one(evidence, (0.1, 0.3)) == np.inf, "seven are too few to believe"


def test_rank_measure_is_spearman_of_rewards_and_judge():
    rng = np.random.default_rng(0)
    s_r, s_j = rng.random(200), rng.random(200)
    evidence = ReplyWindow.of([heard(a, b) for a, b in zip(s_r, s_j, strict=True)])
    cascade = Cascade(0.3, 0.6, 0.2, 0.7)
    rewards = np.array([cascade.mix(a, b) for a, b in zip(s_r, s_j, strict=True)])
    assert one(evidence, (0.3, 0.6), "rank", cascade) == pytest.approx(1.0 - spearman(rewards, s_j))


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(1, 4)), min_size=3, max_size=20))
def test_weight_equals_repeated_rows(rows):
    weighted = [heard(x / 5, y / 5, weight=float(times)) for x, y, times in rows]
    repeated = [heard(x / 5, y / 5) for x, y, times in rows for _ in range(times)]
    losses = [one(ReplyWindow.of(some), (0.3, 0.7), "rank") for some in (weighted, repeated)]
    assert losses[0] == pytest.approx(losses[1], nan_ok=True)


def run(evidence, now, bounds, limit, steps=40, measure="gap", cascade=PAPER):
    path = [now]
    for _ in range(steps):
        path.append(
            most_trusted(evidence, path[-1], bounds, cascade=cascade, measure=measure, limit=limit)
        )  # fmt: skip
    return path


def agreeing_above(edge, n=1000, seed=0):
    """A reranker that says what the judge says above `edge`, and is far off below."""
    s_r = np.random.default_rng(seed).random(n)
    return ReplyWindow.of([heard(x, x if x >= edge else (x + 0.5) % 1.0) for x in s_r])


def test_interval_grows_in_bounded_steps_while_scorers_agree():
    bounds = Bounds(start=(0.68, 0.9), reach=0.3, max_move=0.02)
    path = run(agreeing_above(0.5), (0.68, 0.9), bounds, limit=0.01)
    for (a, b), (next_a, next_b) in pairwise(path):
        assert abs(next_a - a) <= 0.02 + 1e-12
        assert abs(next_b - b) <= 0.02 + 1e-12
    assert path[-1] == path[-2], "it comes to rest"
    assert path[-1][0] == pytest.approx(0.5, abs=0.03)
    assert path[-1][1] >= 0.99


def test_interval_shrinks_where_scorers_disagree():
    bounds = Bounds(start=(0.3, 0.9), reach=0.4, max_move=0.05)
    evidence = agreeing_above(0.6)
    path = run(evidence, (0.3, 0.9), bounds, limit=0.05)
    assert one(evidence, path[0]) > 0.05 >= one(evidence, path[-1])
    assert 0.5 < path[-1][0] < 0.65


def test_interval_does_not_grow_across_a_disagreement_zone():
    """The scorers agree again far below. The whole interval would satisfy the limit, but the steps towards it would
    not.
    """
    s_r = np.random.default_rng(5).random(1000)
    evidence = ReplyWindow.of([heard(x, (x + 0.5) % 1.0 if 0.45 < x < 0.65 else x) for x in s_r])
    path = run(evidence, (0.66, 0.99), Bounds(start=(0.66, 0.99), reach=1.0, max_move=0.02), limit=0.12)
    assert one(evidence, (0.0, 1.0)) <= 0.12 < one(evidence, (0.45, 1.0))
    assert all(one(evidence, ends) <= 0.12 for ends in path)
    assert 0.45 < path[-1][0] < 0.66
    shares = [evidence.escalated_share(*(np.array([end]) for end in ends))[0] for ends in path]
    assert shares == sorted(shares, reverse=True)


def test_interval_never_exceeds_the_reach():
    bounds = Bounds(start=(0.68, 0.9), reach=0.05, max_move=0.02)
    assert run(agreeing_above(0.0), (0.68, 0.9), bounds, limit=0.5)[-1] == pytest.approx((0.63, 0.95), abs=0.015)


def test_interval_grows_with_the_rank_measure():
    bounds = Bounds(start=(0.6, 0.7), reach=0.4, max_move=0.1)
    cascade = Cascade(0.6, 0.7, 0.0, 0.0)
    path = run(agreeing_above(0.4, n=300), (0.6, 0.7), bounds, limit=0.02, measure="rank", cascade=cascade, steps=8)
    assert path[-1][1] > 0.9
    assert 0.35 < path[-1][0] < 0.5


scores = st.floats(0, 1)
rows = st.lists(
    st.tuples(scores, st.one_of(st.none(), scores), st.sampled_from([1.0, 20.0])), min_size=1, max_size=60
)  # fmt: skip


@given(rows, scores, scores, st.floats(0, 1), st.floats(0.001, 1), st.floats(0, 1), st.sampled_from(["gap", "rank"]))
def test_interval_ends_stay_ordered_and_bounded(rows, x, y, reach, move, limit, measure):
    start = (min(x, y), max(x, y))
    bounds = Bounds(start=start, reach=reach, max_move=move)
    evidence = ReplyWindow.of(
        [WindowReply(low=r, high=r, s_r=r, s_j=j, weight=0.0 if j is None else w) for r, j, w in rows]
    )  # fmt: skip
    now = start
    for _ in range(3):
        then = most_trusted(evidence, now, bounds, cascade=PAPER, measure=measure, limit=limit)
        assert 0.0 <= then[0] <= then[1] <= 1.0
        assert max(abs(then[0] - now[0]), abs(then[1] - now[1])) <= move + 1e-12
        assert max(abs(then[0] - start[0]), abs(then[1] - start[1])) <= reach + 1e-12
        now = then


def test_interval_does_not_move_without_judge_scores():
    evidence = ReplyWindow.of([WindowReply(low=0.5, high=0.5, s_r=0.5)] * 50)
    bounds = Bounds(start=(0.4, 0.9), reach=1.0, max_move=0.1)
    assert most_trusted(evidence, (0.4, 0.9), bounds, cascade=PAPER, measure="gap", limit=0.5) == (0.4, 0.9)
