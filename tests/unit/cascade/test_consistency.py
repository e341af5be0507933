"""The maximum over the references, and failures that cannot change it."""

import pytest

from hamr.cascade.consistency import combine, to_judge
from hamr.config.rewards import ConsistencyConfig
from hamr.errors import MissingScore
from hamr.types import JudgeTimeout, JudgeUnavailable, JudgeUnparsable, ReferenceScore, RerankerTimeout, Scored

HYBRID = ConsistencyConfig()
GONE = JudgeTimeout(detail="gone")


def score(reference, s_r=None, s_j=None, verdict=None):
    return ReferenceScore(reference=reference, s_r=s_r, s_j=s_j, verdict=verdict)


def test_best_reference_wins_and_sets_the_band():
    scores = [score(0, 0.2, 0.5), score(2, 0.9), score(5, 0.99, 1.0)]
    result = combine(scores, HYBRID, {})
    assert result.outcome == Scored(value=0.72 * 0.99 + (1 - 0.72) * 1.0)
    assert (result.band, result.decisive.reference) == ("above", 5)


def test_the_earlier_reference_wins_a_tie():
    assert combine([score(3, 0.8), score(4, 0.8)], HYBRID, {}).decisive.reference == 3


@pytest.mark.parametrize(
    ("mode", "value", "band"),
    [("reranker", 0.7, "reranker_only"), ("soft_judge", 0.6, "judge_only"), ("hard_judge", 0.5, "judge_only")],
)
def test_each_mode_uses_its_own_score(mode, value, band):
    result = combine([score(0, 0.7, 0.6, "part")], ConsistencyConfig(mode=mode), {})
    assert (result.outcome, result.band) == (Scored(value=value), band)


@pytest.mark.parametrize(("verdict", "value"), [("yes", 1.0), ("part", 0.0), ("no", 0.0)])
def test_hard_judge_is_binary_where_part_is_worth_nothing(verdict, value):
    config = ConsistencyConfig(mode="hard_judge", hard_part=0.0)
    assert combine([score(0, verdict=verdict)], config, {}).outcome == Scored(value=value)


def test_failure_that_could_change_the_maximum_is_the_outcome():
    result = combine([score(0, 0.9), score(1, 0.5)], HYBRID, {1: GONE})
    assert (result.outcome, result.band, result.decisive.reference) == (GONE, "below", 1)


def test_failure_that_cannot_change_the_maximum_is_ignored():
    # At S_R = 0.1 the most is 0.05 * 0.1 + 0.95 = 0.955; 0.97 beats it whatever the judge would answer.
    result = combine([score(0, 0.1), score(1, 0.97)], HYBRID, {0: GONE})
    assert result.outcome == Scored(value=0.97)


def test_failed_reranker_score_is_bounded_by_one():
    slow = RerankerTimeout(detail="slow")
    assert combine([score(0), score(1, 0.98)], HYBRID, {0: slow}).outcome == slow
    assert combine([score(0), score(1, 1.0, 1.0)], HYBRID, {0: slow}).outcome == Scored(value=1.0)


def test_first_relevant_failure_is_reported():
    first, second = JudgeTimeout(detail="1"), JudgeUnavailable(detail="2")
    assert combine([score(0, 0.3), score(1, 0.3)], HYBRID, {1: second, 0: first}).outcome == first


def test_judge_is_asked_only_outside_the_interval():
    scores = [score(0, 0.5), score(1, 0.7), score(2, 0.99), score(3), score(4, 0.68)]
    assert to_judge(scores, HYBRID) == (0, 2)
    assert to_judge(scores, ConsistencyConfig(mode="reranker")) == ()
    assert to_judge(scores, ConsistencyConfig(mode="soft_judge")) == (0, 1, 2, 3, 4)


def test_best_k_selects_the_highest_reranker_scores():
    scores = [score(0, 0.5), score(1, 0.6), score(2, 0.6), score(3, 0.1)]
    assert to_judge(scores, ConsistencyConfig(judge_best_k=1)) == (1,)
    assert to_judge(scores, ConsistencyConfig(judge_best_k=2)) == (1, 2)
    assert to_judge(scores, ConsistencyConfig(judge_best_k=9)) == (0, 1, 2, 3)


def test_reference_excluded_by_best_k_is_ignored():
    scores = [score(0, 0.5), score(1, 0.6, 0.2)]
    result = combine(scores, ConsistencyConfig(judge_best_k=1), {})
    assert result.outcome == Scored(value=0.05 * 0.6 + (1 - 0.05) * 0.2)


STAND_IN = ConsistencyConfig(fallback="reranker")


@pytest.mark.parametrize("s_r", [0.0, 0.5, 0.67, 0.981, 1.0])
def test_reranker_score_replaces_an_unavailable_judge(s_r):
    for away in (GONE, JudgeUnavailable(detail="no replica")):
        result = combine([score(0, s_r)], STAND_IN, {0: away})
        assert (result.outcome, result.fallback) == (Scored(value=s_r), "reranker")
        assert result.band == ("below" if s_r < 0.68 else "above")
        assert combine([score(0, s_r)], HYBRID, {0: away}).fallback is None


def test_irrelevant_fallback_is_not_flagged():
    # 0.955 at most for reference 0, as above: the true maximum is known, so nothing is flagged.
    result = combine([score(0, 0.1), score(1, 0.97)], STAND_IN, {0: GONE})
    assert (result.outcome, result.fallback) == (Scored(value=0.97), None)


def test_best_reference_wins_over_a_fallback_and_is_flagged():
    # Reference 0 could have had 0.975; with 0.5 in its place reference 1 wins, which may be wrong.
    result = combine([score(0, 0.5), score(1, 0.9)], STAND_IN, {0: GONE})
    assert (result.outcome, result.decisive.reference, result.fallback) == (Scored(value=0.9), 1, "reranker")


def test_no_fallback_for_unparsable_judge_or_failed_reranker():
    mumbled = JudgeUnparsable(detail="hm")
    assert combine([score(0, 0.5)], STAND_IN, {0: mumbled}).outcome == mumbled
    slow = RerankerTimeout(detail="slow")
    result = combine([score(0), score(1, 0.5)], STAND_IN, {0: slow, 1: GONE})
    assert (result.outcome, result.fallback) == (slow, None)


def test_missing_score_without_a_failure_is_an_error():
    with pytest.raises(MissingScore, match="reference 0"):
        combine([score(0, 0.5)], HYBRID, {})
    with pytest.raises(ValueError, match="no reference"):
        combine([], HYBRID, {})
