"""Correction of cascade rewards by the residuals of random audits.

A residual is the judge's reward of an audited reply minus its cascade reward. Audits are drawn at random with a known
probability, so that within a stratum of replies the mean residual estimates what the judge would have changed on
average. The model of the residual of a reply in the strata g (a bin of its reranker score, each visible feature of the
reply, and the pairs of these) is additive,

    shift = mu + sum over g of u_g,        u_g = sum_i w_i (residual_i - mu - sum over other strata) / (sum_i w_i + k),

with w_i = 2^(-age / half_life) by the age of audit i in steps. Each mean is shrunk to its parent, the prediction
without it, as if the stratum also held k audits with residual 0 beyond that prediction. The equations are those of a
ridge regression on indicators (a random effect for each stratum) and are solved by Gauss-Seidel sweeps. mu is shrunk to
0 in the same way, so that without audits the correction is 0.

One feature is learned from the audits too, so that a style without a visible feature is found if it has words of its
own: the level of the residual that a ridge regression on the words of a reply (as numbers of hash buckets) predicts. It
is fitted to the residuals with the same weights. A reply keeps the level of the model before its audit, so that a
stratum of this feature is never estimated from the audits that its regression was fitted to.

Strata overlap instead of being a cross of all features, which has too few audits in each cell: a style that one feature
shows is learned from all replies with that feature. The pairs tell a styled wrong reply (the style's words, and not
similar to the reference) from a styled right one, which the reranker scores alike. A style that no feature shows is
corrected only as far as its score bin differs from others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from hamr.calibration.ranks import Floats

Strata = tuple[str, ...]

SCORE_BINS = 5
PRIOR_AUDITS = 5.0
"""Number of audits k towards the parent of each stratum."""
HALF_LIFE = 20.0
"""Half-life of an audit in steps."""
WORD_BUCKETS = 128
WORD_LEVELS = (-0.3, -0.15, -0.05, 0.05)
"""Limits of the residual predicted from words between the levels of that feature."""
_SWEEPS = 4
_FORGOTTEN = 7
"""Half-lives after which an audit is removed: its weight is then below 1 %."""


@dataclass(frozen=True, kw_only=True)
class Residual:
    """Residual of one audited reply, with the strata that the reply is in and the buckets of its words."""

    step: int
    strata: Strata
    residual: float
    words: tuple[int, ...] = ()


def strata(score: float, interval: tuple[float, float], features: Mapping[str, int]) -> Strata:
    """Return the strata of a reply: its score bin in the interval, each feature, and every pair of these.

    >>> strata(0.9, (0.5, 1.0), {"length": 2})
    ('score=4', 'length=2', 'score=4 length=2')
    """
    low, high = interval
    bin_ = min(int((score - low) / (high - low) * SCORE_BINS), SCORE_BINS - 1) if high > low else 0
    levels = [f"score={bin_}", *(f"{name}={level}" for name, level in features.items())]
    return (*levels, *(" ".join(pair) for pair in combinations(levels, 2)))


class AuditCorrection:
    """Estimate of the residual of a reply from the audits of earlier steps.

    The estimate changes only in `update`, so all replies of a step are corrected alike, in whatever order the answers
    of the judge arrive.

    >>> model = AuditCorrection(prior_audits=1.0, half_life=10.0)
    >>> model.shift(("score=3",))
    0.0
    >>> model.update(1, [Residual(step=0, strata=("score=3",), residual=-0.5)] * 9)
    >>> round(model.shift(("score=3",)), 3), round(model.shift(("score=0",)), 3)
    (-0.494, -0.447)
    """

    def __init__(self, *, prior_audits: float = PRIOR_AUDITS, half_life: float = HALF_LIFE) -> None:
        self._prior, self._half_life = prior_audits, half_life
        self._audits: deque[Residual] = deque()
        self._mean = 0.0
        self._effects: dict[str, float] = {}
        self._words: Floats = np.zeros(WORD_BUCKETS)

    @property
    def strata(self) -> int:
        """Number of strata with audits."""
        return len(self._effects)

    @property
    def audits(self) -> int:
        """Number of audits in use."""
        return len(self._audits)

    def word_level(self, words: Sequence[int]) -> int:
        """Return the level, from 0, of the residual that the words of a reply predict."""
        predicted = float(self._words[list(words)].sum()) / max(1, len(words)) ** 0.5
        return sum(predicted >= limit for limit in WORD_LEVELS)

    def shift(self, strata: Strata) -> float:
        """Return the correction of a reply in these strata."""
        return self._mean + sum(self._effects.get(name, 0.0) for name in strata)

    def update(self, step: int, audits: Sequence[Residual]) -> None:
        """Add audits and estimate the corrections of `step`. Audits of any later step must not be included."""
        self._audits.extend(audits)
        while self._audits and step - self._audits[0].step > _FORGOTTEN * self._half_life:
            self._audits.popleft()
        self._mean, self._effects, self._words = 0.0, {}, np.zeros(WORD_BUCKETS)
        if not self._audits:
            return
        age = np.array([step - audit.step for audit in self._audits], dtype=np.float64)
        weight = 0.5 ** (age / self._half_life)
        left: Floats = np.array([audit.residual for audit in self._audits])
        self._words = self._word_weights(weight, left)
        self._mean = float(weight @ left / (weight.sum() + self._prior))
        names: dict[str, int] = {}
        ids = [[names.setdefault(name, len(names)) for name in audit.strata] for audit in self._audits]
        effects = _sweeps(left - self._mean, weight, ids, len(names), self._prior)
        self._effects = dict(zip(names, effects.tolist(), strict=True))

    def _word_weights(self, weight: Floats, residuals: Floats) -> Floats:
        """Return the weight of each bucket. The words of a reply count 1 / sqrt(number of words) each."""
        words = np.zeros((len(self._audits), WORD_BUCKETS))
        for row, audit in zip(words, self._audits, strict=True):
            row[list(audit.words)] = max(1, len(audit.words)) ** -0.5
        penalty = self._prior * np.eye(WORD_BUCKETS)
        found = np.linalg.solve(words.T @ (words * weight[:, None]) + penalty, words.T @ (weight * residuals))
        return np.asarray(found, dtype=np.float64)

    def state(self) -> list[list[Any]]:
        """Return the JSON state for a checkpoint, as accepted by `restore`."""
        return [[audit.step, list(audit.strata), audit.residual, list(audit.words)] for audit in self._audits]

    def restore(self, step: int, state: Sequence[Sequence[Any]]) -> None:
        """Restore the state of a checkpoint that was saved when `step` was the next one."""
        self._audits.clear()
        kept = [
            Residual(step=at, strata=tuple(names), residual=own, words=tuple(*words))
            for at, names, own, *words in state
        ]
        self.update(step, kept)


def _sweeps(left: Floats, weight: Floats, ids: Sequence[Sequence[int]], count: int, prior: float) -> Floats:
    """Return the effect of each of `count` strata. `left` (n) is what the mean leaves, `ids` the strata of each row."""
    columns = np.array(ids).T
    totals = [np.bincount(column, weight, count) for column in columns]
    effects = np.zeros(count)
    for _ in range(_SWEEPS):
        for column, total in zip(columns, totals, strict=True):
            wanted = np.bincount(column, weight * (left + effects[column]), count) / (total + prior)
            change = np.where(total > 0.0, wanted - effects, 0.0)
            effects += change
            left = left - change[column]
    return effects
