"""Statistics of benchmark metrics: bootstrap intervals, a paired test, and agreement of labels."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
_NORMAL = 1.959963984540054
"""The normal quantile of the 95 % level."""
_EXACT = 12
"""Up to this number of differences all sign patterns are enumerated: at most 4,096."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean of `n` values with its 95 % bootstrap interval. All None where there is nothing to average."""

    mean: float | None
    low: float | None
    high: float | None
    n: int


def mean_interval(values: Sequence[float], *, resamples: int, seed: int) -> Estimate:
    """Percentile bootstrap over the values, which have to be independent (for example one per dialogue)."""
    if not values:
        return Estimate(mean=None, low=None, high=None, n=0)
    data = np.asarray(values, dtype=np.float64)
    low, high = np.quantile(_means(data, resamples, seed), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(mean=float(data.mean()), low=float(low), high=float(high), n=len(data))


def sign_flip_p(differences: Sequence[float], *, resamples: int, seed: int) -> float:
    """Return the two-sided p-value of a paired permutation test.

    That is the share of random sign flips for which the mean of the differences is at least as far from 0. Exact for at
    most 12 pairs; else from `resamples` draws, including the observed data, so that it is never 0. 1.0 where all
    differences are 0. Raises ValueError for no differences.

    >>> sign_flip_p([1.0, 1.0, 1.0], resamples=1, seed=0)
    0.25
    """
    if not differences:
        raise ValueError("a paired test needs at least one pair")
    data = np.asarray(differences, dtype=np.float64)
    # Tolerance: sums that are mathematically equal may differ in floating point.
    seen = abs(float(data.sum())) - 1e-9
    if len(data) <= _EXACT:
        sums = [abs(float(data @ signs)) for signs in itertools.product((1.0, -1.0), repeat=len(data))]
        return sum(total >= seen for total in sums) / len(sums)
    rng = np.random.default_rng(seed)
    far = sum(abs(float(data @ rng.choice((1.0, -1.0), size=len(data)))) >= seen for _ in range(resamples))
    return (1 + far) / (1 + resamples)


def exact_agreement(a: Sequence[Hashable], b: Sequence[Hashable]) -> float | None:
    """Return the share of equal labels; None for no labels."""
    pairs = list(zip(a, b, strict=True))
    return sum(x == y for x, y in pairs) / len(pairs) if pairs else None


def cohen_kappa(a: Sequence[Hashable], b: Sequence[Hashable]) -> float | None:
    """Return the agreement beyond chance, (p_o - p_e) / (1 - p_e), with p_e from each side's label frequencies.

    1 for full agreement, 0 for chance level, in [-1, 1]. None for no labels, and where both sides use one and the same
    label throughout: chance alone agrees then.

    >>> cohen_kappa("yyn", "yyn"), cohen_kappa("yynn", "ynyn"), cohen_kappa("yy", "yy")
    (1.0, 0.0, None)
    """
    agreed = exact_agreement(a, b)
    if agreed is None:
        return None
    left, right = Counter(a), Counter(b)
    # Integers until the last step, so that p_e = 1 is detected exactly.
    chance, all_pairs = sum(count * right[label] for label, count in left.items()), len(a) * len(b)
    if chance == all_pairs:
        return None
    return (agreed - chance / all_pairs) / (1 - chance / all_pairs)


def _means(data: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """Return means of draws with replacement, one at a time to avoid an array of [resamples, n]."""
    rng = np.random.default_rng(seed)
    size = len(data)
    return np.array([data[rng.integers(size, size=size)].mean() for _ in range(resamples)])


def share_interval(held: Sequence[bool]) -> Estimate:
    """Return a share with Wilson's score interval.

    For small or extreme counts, where a bootstrap has no variance: 5 of 5 is not a certainty.

    (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n),  z = 1.96

    >>> found = share_interval([True] * 5)
    >>> round(found.low, 3), found.high
    (0.566, 1.0)
    """
    n = len(held)
    if not n:
        return Estimate(mean=None, low=None, high=None, n=0)
    share, z = sum(held) / n, _NORMAL
    middle, spread = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    low, high = (middle - spread) / scale, (middle + spread) / scale
    # Mathematically the bounds are exactly 0 and 1 where none or all hold.
    return Estimate(mean=share, low=0.0 if share == 0 else low, high=1.0 if share == 1 else high, n=n)
