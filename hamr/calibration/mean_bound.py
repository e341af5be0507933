"""Confidence sequence for a mean: an interval that holds at all times simultaneously, however often it is read.

Predictable plug-in empirical-Bernstein sequence of Waudby-Smith and Ramdas (arXiv:2010.09686, Theorem 2) for values X
in [0, 1]:

    C_t = sum_i l_i X_i / sum_i l_i  +-  ( log(2 / alpha) + sum_i v_i psi(l_i) ) / sum_i l_i
    v_i = 4 (X_i - m_{i-1})^2,   psi(l) = ( -log(1 - l) - l ) / 4
    l_t = min( 1/2, sqrt( 2 log(2 / alpha) / ( s_{t-1} t log(1 + t) ) ) )
    m_t = (1/2 + sum_i X_i) / (t + 1),   s_t = (1/4 + sum_i (X_i - m_i)^2) / (t + 1)

P(exists t: mean outside C_t) <= alpha if every X has this mean given the past. If the mean moves, as that of a policy
in training does, the sequence holds for the mean of the conditional means with the weights l_i, because the proof uses
each step's own mean only.

`lower_bound` is another sequence, by betting, which finds rare large values after fewer of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

ALPHA = 0.05
"""Probability that the interval ever misses the mean."""
BETS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Shares of its capital that the wager of `lower_bound` puts on each value."""
_HALVINGS = 30


class MeanBound:
    """Sequence for values in [-1, 1], which are mapped to [0, 1].

    >>> bound = MeanBound()
    >>> bound.interval
    (-1.0, 1.0)
    >>> for value in [0.3, 0.1] * 200:
    ...     bound.add(value)
    >>> [round(end, 2) for end in bound.interval]
    [0.16, 0.24]
    """

    def __init__(self) -> None:
        self.count = 0
        self._sum, self._squares = 0.5, 0.25  # sums of X and of (X - m)^2 with their starting values
        self.weight = self._weighted = self._variance = 0.0  # weight: sum of the l_i

    def add(self, value: float) -> None:
        """Add a value in [-1, 1] to the sequence."""
        x, t = (value + 1.0) / 2.0, self.count + 1
        mean, spread = self._sum / t, self._squares / t
        weight = min(0.5, math.sqrt(2.0 * math.log(2.0 / ALPHA) / (spread * t * math.log(1.0 + t))))
        self.weight += weight
        self._weighted += weight * x
        self._variance += (x - mean) ** 2 * (-math.log(1.0 - weight) - weight)
        self._sum += x
        self._squares += (x - self._sum / (t + 1)) ** 2
        self.count = t

    @property
    def interval(self) -> tuple[float, float]:
        """Lower and upper end."""
        if not self.count:
            return -1.0, 1.0
        centre = self._weighted / self.weight
        half = (math.log(2.0 / ALPHA) + self._variance) / self.weight
        return max(-1.0, 2.0 * (centre - half) - 1.0), min(1.0, 2.0 * (centre + half) - 1.0)

    def state(self) -> list[float]:
        """Return the JSON state for a checkpoint."""
        return [self.count, self._sum, self._squares, self.weight, self._weighted, self._variance]

    @classmethod
    def of_state(cls, state: Sequence[float]) -> MeanBound:
        """Inverse of `state`."""
        bound = cls()
        count, bound._sum, bound._squares, bound.weight, bound._weighted, bound._variance = state
        bound.count = int(count)
        return bound


def lower_bound(values: Sequence[float]) -> float:
    """Return a lower bound on the highest mean that any of the values in [-1, 1] had given those before it.

    With X in [0, 1], the capital of the wager that the means are above m,

        K(m) = mean over l in BETS of prod_i ( 1 + l (X_i / m - 1) ),

    is a non-negative supermartingale from 1 if none is, so P(K(m) ever reaches 1 / alpha) <= alpha (Ville). The bound
    is the largest m at which it has (Waudby-Smith and Ramdas, section 4; a fixed mixture of bets in place of theirs).

    >>> lower_bound([0.0, 0.0, 0.9] * 20) > 0.05 > lower_bound([0.0, 0.0, 0.9] * 3)
    True
    """
    x, bets = (np.asarray(values, dtype=np.float64) + 1.0) / 2.0, np.array(BETS)[:, None]
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        mean = (low + high) / 2.0
        grown = np.log1p(bets * (x / mean - 1.0)).cumsum(axis=1)
        reached = np.logaddexp.reduce(grown).max(initial=0.0) - math.log(len(BETS)) >= -math.log(ALPHA)
        low, high = (mean, high) if reached else (low, mean)
    return 2.0 * low - 1.0


def audits_needed(width: float, spread: float, most: int = 20_000) -> int | None:
    """Return the number of audits after which the half width is at most `width`, None if above `most`.

    `spread`: standard deviation of the values in [-1, 1].
    """
    bound = MeanBound()
    while bound.count < most:
        bound.add(spread if bound.count % 2 else -spread)
        if _half_width(bound) <= width:
            return bound.count
    return None


def half_width(audits: int, spread: float) -> float:
    """Return the half width after `audits` values of this standard deviation."""
    bound = MeanBound()
    for i in range(audits):
        bound.add(spread if i % 2 else -spread)
    return _half_width(bound)


def _half_width(bound: MeanBound) -> float:
    low, high = bound.interval
    return (high - low) / 2.0
