"""AUC by ranks, and the comparison of a scorer with word overlap."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.apps.scorer.pair_check import auc, auc_standard_error, check_scorer, word_overlap
from hamr.data.pairs import ReplyPair
from hamr.types import Answer, Question

scored = st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]), st.booleans()), min_size=2, max_size=30)


@given(scored)
def test_auc_is_the_fraction_of_correctly_ordered_pairs(rows: list[tuple[float, bool]]) -> None:
    positives = [s for s, label in rows if label]
    negatives = [s for s, label in rows if not label]
    if not positives or not negatives:
        with pytest.raises(ValueError, match="both classes"):
            auc([s for s, _ in rows], [label for _, label in rows])
        return
    won = sum((p > n) + 0.5 * (p == n) for p in positives for n in negatives)
    assert auc([s for s, _ in rows], [label for _, label in rows]) == pytest.approx(
        won / (len(positives) * len(negatives))
    )


def test_standard_error_of_auc_matches_hand_computed_values() -> None:
    """At 0.5 it is sqrt((n + m + 1) / (12 n m)), the variance of the Mann-Whitney statistic under no difference; at 1
    it is 0; more pairs make it smaller."""
    assert auc_standard_error(0.5, 30, 20) == pytest.approx(math.sqrt(51 / (12 * 600)))
    assert auc_standard_error(1.0, 5, 5) == 0.0
    assert auc_standard_error(0.8, 100, 100) < auc_standard_error(0.8, 30, 30)


def test_word_overlap_ignores_case_and_punctuation() -> None:
    assert word_overlap("There is a fee.", "there IS a fee") == 1.0
    assert word_overlap("yes", "no") == 0.0
    assert word_overlap("", "") == 1.0


async def test_check_excludes_failures_and_partial_pairs() -> None:
    def pair(a: str, b: str, label: str) -> ReplyPair:
        return ReplyPair(history="", statement_a=a, statement_b=b, label=label, thought="")

    async def ask(question: Question) -> Answer:
        if question.variables["statement_b"] == "broken":
            return Answer(failure="timeout", detail="late")
        return Answer(score=0.9 if question.variables["statement_b"] == "same" else 0.2)

    pairs = [
        pair("same", "same", "consistent"),
        pair("same", "other", "inconsistent"),
        pair("same", "broken", "consistent"),
        pair("same", "half", "partial"),
    ]
    check = await check_scorer(ask, pairs)
    assert (check.n, check.failed, check.auc) == (3, 1, 1.0)


async def test_auc_requires_scores_of_both_classes() -> None:
    """Imported tickets have one reply per sample, so no two replies agree."""
    asked = []

    async def ask(question: Question) -> Answer:
        asked.append(question)
        return Answer(failure="timeout", detail="late")

    pairs = [
        ReplyPair(history="", statement_a="a", statement_b=str(i), label="inconsistent", thought="") for i in range(3)
    ]
    assert await check_scorer(ask, pairs) is None and not asked
    same = ReplyPair(history="", statement_a="a", statement_b="A!", label="consistent", thought="")
    assert await check_scorer(ask, [*pairs, same]) is None and len(asked) == 4
