"""Check of a scorer's signal: its AUC on labelled reply pairs, compared with that of word overlap."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from hamr.data.pairs import ReplyPair
from hamr.types import Answer, Question


@dataclass(frozen=True, kw_only=True)
class ScorerCheck:
    """AUC in [0, 1] (0.5 is chance) on those of `n` pairs that have a score, all but `failed`.

    Only 'consistent' and 'inconsistent' pairs count; partial ones belong to neither class.
    """

    auc: float
    standard_error: float
    word_overlap_auc: float
    n: int
    failed: int

    @property
    def is_at_chance(self) -> bool:
        """Return True unless the AUC is above 0.5 by two standard errors."""
        return self.auc - 2 * self.standard_error <= 0.5


async def check_scorer(ask: Callable[[Question], Awaitable[Answer]], pairs: Sequence[ReplyPair]) -> ScorerCheck | None:
    """Ask the scorer about every clear pair and compare it with word overlap on the same pairs.

    Returns None if no consistent or no inconsistent pair has a score, which leaves the AUC undefined. Without both
    kinds among the pairs, no question is asked.
    """
    clear = [pair for pair in pairs if pair.label in ("consistent", "inconsistent")]
    if len({pair.label for pair in clear}) < 2:
        return None
    answers = await asyncio.gather(*(ask(pair_question(pair)) for pair in clear))
    scored = [(pair, answer.score) for pair, answer in zip(clear, answers, strict=True) if answer.score is not None]
    labels = [pair.label == "consistent" for pair, _ in scored]
    if len(set(labels)) < 2:
        return None
    value = auc([score for _, score in scored], labels)
    return ScorerCheck(
        auc=value,
        standard_error=auc_standard_error(value, sum(labels), len(labels) - sum(labels)),
        word_overlap_auc=auc([word_overlap(pair.statement_a, pair.statement_b) for pair, _ in scored], labels),
        n=len(clear),
        failed=len(clear) - len(scored),
    )


def pair_question(pair: ReplyPair) -> Question:
    """Return the question that the router asks about such a pair."""
    return Question(
        variables={"history": pair.history, "statement_a": pair.statement_a, "statement_b": pair.statement_b}
    )


def auc(scores: Sequence[float], labels: Sequence[bool]) -> float:
    """Return the area under the ROC curve: P(a positive scores above a negative), ties count half (Mann-Whitney).

    Raises ValueError when one class is empty.
    """
    from sklearn.metrics import roc_auc_score

    positives, negatives = sum(labels), len(labels) - sum(labels)
    if not positives or not negatives:
        raise ValueError(f"AUC needs both classes; got {positives} positive and {negatives} negative pairs")
    return float(roc_auc_score(labels, scores))


def auc_standard_error(value: float, positives: int, negatives: int) -> float:
    """Return the standard error of an AUC for these numbers of pairs (Hanley and McNeil 1982).

    >>> round(auc_standard_error(0.5, 30, 30), 3)
    0.075
    """
    two_positives, two_negatives = value / (2 - value), 2 * value**2 / (1 + value)
    variance = (
        value * (1 - value)
        + (positives - 1) * (two_positives - value**2)
        + (negatives - 1) * (two_negatives - value**2)
    ) / (positives * negatives)
    return math.sqrt(variance)


def word_overlap(a: str, b: str) -> float:
    """Return the F1 of the distinct words of both texts, without case and punctuation; 1 for two empty texts."""
    words_a, words_b = set(re.findall(r"\w+", a.lower())), set(re.findall(r"\w+", b.lower()))
    if not words_a and not words_b:
        return 1.0
    return 2 * len(words_a & words_b) / (len(words_a) + len(words_b))
