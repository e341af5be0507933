"""Approximate rho of every cascade on a fine grid: the first stage of the calibration search (Eq. 5).

Notation: T cuts of S_R, W weights, B bins of R. A cut k is a number of rows in the order of S_R. Cuts (a, b), a <= b,
define the bands below (before a), inside and above (from b on).

Ranks are linear in counts. Divide R into B bins, with f_i the share of rows in bin i and g_i the sum of their centred y
ranks. The middle rank of a bin is r_i = sum_{j<i} f_j + f_i / 2, the numerator of rho is sum_i r_i g_i, and the
variance of the ranks, ties included, is (1 - sum_i f_i^3) / 12. The counts of a cascade are the sum of two terms, one
of which depends only on (a, w1) and the other only on (b, w2):

    f = D(a, w1) + Q(b, w2)      D = rows before a, mixed with w1, less the same rows at S_R itself
                                 Q = rows from b on, mixed with w2, plus the rows before b at S_R itself

so both sums over all pairs of (a, w1) and (b, w2) are matrix products. Only the binning is approximate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hamr.calibration.ranks import Floats, Ints, Target

Singles: TypeAlias = npt.NDArray[np.float32]

WEIGHT_STEPS = 100
"""Weights are multiples of 1 / WEIGHT_STEPS."""
BINS = 256
MOST_SAMPLED = 50_000
"""Number of values that determine the bin edges. More would not change them."""
_POOLED = (0.0, 0.0, 0.0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 1.0, 1.0, 1.0)
"""Weights whose mixes determine the edges. A score alone has more weight, since it is the reward of every inside
row."""
_FLAT = 1e-6
"""Smallest share of the full variance of the ranks at which rho is reliable in single precision."""


@dataclass(frozen=True, eq=False)
class Grid:
    """Binned scores at every cut and weight, (T, W, B).

    `counts[k, w]` is the share of all rows that lie before cut k and, mixed at weight w / WEIGHT_STEPS, in each bin.
    `sums[k, w]` holds their y ranks. The last weight is S_R.
    """

    counts: Singles
    sums: Singles
    target_variance: float

    @classmethod
    def build(cls, s_r: Floats, s_j: Floats, target: Target, before: Ints, cuts: Ints) -> Grid:
        """`before[i]` is the number of rows with a lower S_R than row i. `cuts` are ascending numbers of rows,
        including 0 and n."""
        edges = _edges(s_r, s_j)
        bins, segments = edges.size + 1, cuts.size - 1
        rows = (np.searchsorted(cuts, before, side="right") - 1) * bins
        shape = (cuts.size, WEIGHT_STEPS + 1, bins)
        counts, sums = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        ranks = target.centred / s_r.size
        for step in range(WEIGHT_STEPS + 1):
            w = step / WEIGHT_STEPS
            cells = rows + np.searchsorted(edges, w * s_r + (1.0 - w) * s_j, side="right")
            for out, weights in ((counts, None), (sums, ranks)):
                cell = np.bincount(cells, weights, minlength=segments * bins).reshape(segments, bins)
                out[1:, step] = np.cumsum(cell, axis=0) / s_r.size
        return cls(counts, sums, (target.norm / s_r.size) ** 2 / s_r.size)

    def best_of_every_pair(self, stride: int) -> Singles:
        """Return the best rho (T, T) of every pair of cuts (a, b) over weights in steps of `stride`. -inf for a > b and
        where R is constant."""
        every = slice(None), slice(None, None, stride)
        below, above = self._below(*every), self._above(*every)
        cuts, weights = below.own.shape
        best = np.full((cuts, cuts), -np.inf, np.float32)
        for a in range(cuts):
            rho = self._rho(below[a : a + 1], above[a:])
            best[a, a:] = rho.reshape(weights, cuts - a, weights).max(axis=(0, 2))
        return best

    def weights_of_pair(self, a: int, b: int) -> Singles:
        """Return rho over all weights, (w1, w2), at one pair of cuts."""
        every = slice(None)
        return self._rho(self._below(slice(a, a + 1), every), self._above(slice(b, b + 1), every))

    def _below(self, cuts: slice, steps: slice) -> _Term:
        """D of the cuts and weights."""
        plain_counts, plain_sums = self.counts[cuts, -1:], self.sums[cuts, -1:]
        return _Term.of(self.counts[cuts, steps] - plain_counts, self.sums[cuts, steps] - plain_sums)

    def _above(self, cuts: slice, steps: slice) -> _Term:
        """Q of the cuts and weights, arranged for the product with D."""
        counts = self.counts[-1:, steps] - self.counts[cuts, steps] + self.counts[cuts, -1:]
        sums = self.sums[-1:, steps] - self.sums[cuts, steps] + self.sums[cuts, -1:]
        return _Term.of(counts, sums, mirrored=True)

    def _rho(self, below: _Term, above: _Term) -> Singles:
        """Return rho, (rows of `below`, rows of `above`), each flattened."""
        together = below.first @ above.first.T + below.own.reshape(-1, 1) + above.own.reshape(1, -1)
        cubes = 3.0 * (below.second @ above.second.T) + below.cubes.reshape(-1, 1) + above.cubes.reshape(1, -1)
        variance = 1.0 - cubes
        flat = variance < _FLAT
        variance[flat] = 1.0
        together /= np.sqrt(variance * np.float32(self.target_variance / 12.0))
        together[flat] = -np.inf
        return together


@dataclass(frozen=True, eq=False)
class _Term:
    """D or Q at (T, W): the factors of the two products, (T, W, 2B), and its own contribution, (T, W)."""

    products: Singles
    powers: Singles
    own: Singles
    cubes: Singles

    @classmethod
    def of(cls, counts: Singles, sums: Singles, *, mirrored: bool = False) -> _Term:
        ranks: Singles = np.cumsum(counts, axis=-1, dtype=np.float32) - np.float32(0.5) * counts
        products: list[Singles] = [ranks, sums]
        powers: list[Singles] = [np.square(counts), counts]
        if mirrored:  # ranks meet sums, squares meet first powers
            products.reverse()
            powers.reverse()
        return cls(
            np.concatenate(products, axis=-1),
            np.concatenate(powers, axis=-1),
            (ranks * sums).sum(-1),
            (counts**3).sum(-1),
        )

    def __getitem__(self, cuts: slice) -> _Term:
        return _Term(self.products[cuts], self.powers[cuts], self.own[cuts], self.cubes[cuts])

    @property
    def first(self) -> Singles:
        return self.products.reshape(-1, self.products.shape[-1])

    @property
    def second(self) -> Singles:
        return self.powers.reshape(-1, self.powers.shape[-1])


def _edges(s_r: Floats, s_j: Floats) -> Floats:
    """Return the bin edges: quantiles of the possible values of R, so that scores clustered at 0 or 1 are separated
    too.

    The scores and mixes of all weights are used. If they have few distinct values, each is an edge, and only ties share
    a bin.
    """
    step = max(1, s_r.size * len(_POOLED) // MOST_SAMPLED)
    pool = np.concatenate([(w * s_r + (1.0 - w) * s_j)[i % step :: step] for i, w in enumerate(_POOLED)])
    values = np.unique(pool)
    if values.size > BINS:
        values = np.unique(np.quantile(pool, np.linspace(0.0, 1.0, BINS + 1), method="lower"))
    return values[1:]
