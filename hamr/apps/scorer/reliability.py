"""Quality of scores as probabilities: accuracy, reliability by bins, and the expected calibration error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hamr.apps.scorer.pair_check import auc

BINS = 10


@dataclass(frozen=True, kw_only=True)
class Bin:
    """`n` scores in [low, high) (the last bin includes its right edge), their mean, and the share of positive labels.

    The two are equal for a calibrated scorer.
    """

    low: float
    high: float
    n: int
    score: float
    frequency: float


@dataclass(frozen=True, kw_only=True)
class Quality:
    """Figures of a scorer on `n` labelled pairs, all in [0, 1]. `auc` is None where there is only one class.

    `accuracy` counts a score of at least 0.5 as a yes. `precision` and `recall` are those of the wrong replies: the
    share of negative labels among the scores below 0.5 (None if there are none), and the share of the negative labels
    with such a score. `calibration_error` is 0 for a calibrated scorer.
    """

    n: int
    accuracy: float
    auc: float | None
    precision: float | None
    recall: float | None
    calibration_error: float
    bins: tuple[Bin, ...]


def quality(scores: Sequence[float], labels: Sequence[bool]) -> Quality:
    """Return the quality of scores with known labels. Raises ValueError without scores, or for one outside [0, 1].

    >>> q = quality([0.9, 0.7, 0.2, 0.6], [True, True, False, False])
    >>> q.accuracy, q.auc, round(q.calibration_error, 3)
    (0.75, 1.0, 0.3)
    """
    if not scores:
        raise ValueError("a scorer is measured on at least one pair")
    bins = reliability(scores, labels)
    pairs = list(zip(scores, labels, strict=True))
    refused = [label for score, label in pairs if score < 0.5]
    found, wrong = refused.count(False), labels.count(False)
    return Quality(
        n=len(pairs),
        accuracy=sum((score >= 0.5) == label for score, label in pairs) / len(pairs),
        auc=auc(scores, labels) if 0 < sum(labels) < len(pairs) else None,
        precision=found / len(refused) if refused else None,
        recall=found / wrong if wrong else None,
        calibration_error=calibration_error(bins),
        bins=bins,
    )


def reliability(scores: Sequence[float], labels: Sequence[bool], bins: int = BINS) -> tuple[Bin, ...]:
    """Return the scores in `bins` bins of equal width, without empty ones."""
    held: dict[int, list[tuple[float, bool]]] = {}
    for score, label in zip(scores, labels, strict=True):
        if not 0.0 <= score <= 1.0:
            raise ValueError(f"{score} is not a score in [0, 1]")
        held.setdefault(min(int(score * bins), bins - 1), []).append((score, label))
    return tuple(
        Bin(
            low=at / bins,
            high=(at + 1) / bins,
            n=len(pairs),
            score=sum(score for score, _ in pairs) / len(pairs),
            frequency=sum(label for _, label in pairs) / len(pairs),
        )
        for at, pairs in sorted(held.items())
    )


def calibration_error(bins: Sequence[Bin]) -> float:
    """Return the expected calibration error: mean |score - frequency| over the bins, weighted by their sizes."""
    return sum(b.n * abs(b.score - b.frequency) for b in bins) / sum(b.n for b in bins)
