"""Spearman's rank correlation with average ranks for ties, and its bootstrap interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Target:
    """Fixed side of a correlation: the centred average ranks of y, and the root of their sum of squares."""

    centred: Floats
    norm: float

    @classmethod
    def of(cls, y: Floats) -> Target:
        """Return the target of labels y [n]. Ties have their average rank."""
        from scipy.stats import rankdata

        centred = rankdata(y) - (y.size + 1) / 2
        return cls(centred, float(np.sqrt(centred @ centred)))

    def spearman(self, values: Floats) -> float:
        """Return rho of `values` with y, in [-1, 1]. NaN if either is constant."""
        order, starts, sizes = _sort_with_ties(values)
        # Average rank of each group of ties, minus the mean rank.
        middles = starts + (sizes + 1) / 2 - (values.size + 1) / 2
        spread = float(sizes @ middles**2)
        if spread <= 0.0 or self.norm == 0.0:
            return float("nan")
        together = float(middles @ np.add.reduceat(self.centred[order], starts))
        return min(1.0, max(-1.0, together / (self.norm * spread**0.5)))


def spearman(values: Floats, y: Floats) -> float:
    """Return rho of two arrays of equal length: Pearson's correlation of their average ranks. NaN if one is
    constant."""
    return Target.of(y).spearman(values)


def bootstrap_interval(
    values: Floats, y: Floats, *, resamples: int, level: float, seed: int
) -> tuple[float, float] | None:
    """Return the percentile interval of rho over `resamples` draws of the rows with replacement. `values` are not
    refitted.

    None if fewer than two draws have a rho (a draw of few rows can be constant).
    """
    rng = np.random.default_rng(seed)
    found = []
    ranked, groups_x = np.unique(values, return_inverse=True)
    ranked_y, groups_y = np.unique(y, return_inverse=True)
    for _ in range(resamples):
        drawn = rng.integers(values.size, size=values.size)
        # Only the counts of a draw matter: ranks follow from them without another sort.
        x_groups, y_groups = groups_x[drawn], groups_y[drawn]
        x = _centred_middles(np.bincount(x_groups, minlength=ranked.size))[x_groups]
        target = _centred_middles(np.bincount(y_groups, minlength=ranked_y.size))[y_groups]
        scale = float(x @ x) * float(target @ target)
        if scale > 0.0:
            found.append(float(x @ target) / scale**0.5)
    if len(found) < 2:
        return None
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _centred_middles(sizes: Ints) -> Floats:
    """Average rank of every group of ties, in their order, minus the mean rank."""
    return np.cumsum(sizes) - sizes / 2 - sizes.sum() / 2


def _sort_with_ties(values: Floats) -> tuple[Ints, Ints, Ints]:
    """Return (sort order, start of each group of equal values in it, size of each group)."""
    order = np.argsort(values)
    sorted_values = values[order]
    fresh = np.ones(values.size + 1, dtype=bool)
    np.not_equal(sorted_values[1:], sorted_values[:-1], out=fresh[1:-1])
    starts = np.flatnonzero(fresh)
    return order, starts[:-1], starts[1:] - starts[:-1]
