"""Agreement of judges with human labels of the same pairs (first paper, section 3.1), and with each other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hamr.bench.statistics import Estimate, cohen_kappa, exact_agreement, share_interval
from hamr.calibration.ranks import bootstrap_interval, spearman
from hamr.prompting.labels import LABEL_VALUES, Label

Rating = tuple[float, Label]
"""A score in [0, 1] and the corresponding level."""


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """Spearman's rho with its 95 % bootstrap interval; None where one side is constant."""

    rho: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Agreement with human labels, over the rated pairs; `missing` pairs have no rating.

    `spearman`: of the scores with the labels' values. `accuracy`: the same level of three. `clear_accuracy`: of the
    pairs labelled consistent or inconsistent, the share with the score on the same side of one half (exactly one half
    is on neither side). Use it where the labels have no third level. `kappa`: Cohen's kappa of the three levels.
    """

    accuracy: Estimate
    clear_accuracy: Estimate
    kappa: float | None
    spearman: Correlation
    missing: int


@dataclass(frozen=True, kw_only=True)
class Between:
    """Two judges on the `n` questions that both answered: share of equal levels, and Cohen's kappa."""

    n: int
    same: float | None
    kappa: float | None


def level(score: float) -> Label:
    """Return the level nearest to an ensemble's mean; half way between two it is the middle one.

    >>> level(0.76), level(0.75), level(0.25), level(0.24)
    ('yes', 'part', 'part', 'no')
    """
    return "yes" if score > 0.75 else "no" if score < 0.25 else "part"


def with_people(ratings: Sequence[Rating | None], labels: Sequence[Label], *, resamples: int, seed: int) -> Agreement:
    """Compare the ratings of a judge or of the ensemble with human labels of the same pairs. None: no rating."""
    known = [(rating, label) for rating, label in zip(ratings, labels, strict=True) if rating is not None]
    judged, people = [rating[1] for rating, _ in known], [label for _, label in known]
    right = [(score - 0.5) * (LABEL_VALUES[label] - 0.5) > 0 for (score, _), label in known if label != "part"]
    return Agreement(
        accuracy=share_interval([ours == theirs for ours, theirs in zip(judged, people, strict=True)]),
        clear_accuracy=share_interval(right),
        kappa=cohen_kappa(judged, people),
        spearman=correlation([s for (s, _), _ in known], [LABEL_VALUES[label] for label in people], resamples, seed),
        missing=len(labels) - len(known),
    )


def between(a: Sequence[Label | None], b: Sequence[Label | None]) -> Between:
    """Compare two judges' levels on the same questions; None where one did not answer."""
    both = [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
    left, right = [x for x, _ in both], [y for _, y in both]
    return Between(n=len(both), same=exact_agreement(left, right), kappa=cohen_kappa(left, right))


def correlation(scores: Sequence[float], values: Sequence[float], resamples: int, seed: int) -> Correlation:
    """Return Spearman's rho of scores and human labels; None where one side is constant."""
    x, y = np.asarray(scores, dtype=np.float64), np.asarray(values, dtype=np.float64)
    rho = spearman(x, y) if scores else math.nan
    if math.isnan(rho):
        return Correlation(rho=None, low=None, high=None)
    interval = bootstrap_interval(x, y, resamples=resamples, level=0.95, seed=seed)
    low, high = interval if interval is not None else (None, None)
    return Correlation(rho=rho, low=low, high=high)
