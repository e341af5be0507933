"""Statistics of benchmark metrics: bootstrap intervals, a paired test, and agreement of labels.

scipy and scikit-learn do the work. They are loaded at the first call, because loading them takes about a second.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
_EXACT = 4096
"""Number of sign patterns up to which a paired test enumerates all of them: those of 12 pairs."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean of `n` values with its 95 % interval. All None where there is nothing to average."""

    mean: float | None
    low: float | None
    high: float | None
    n: int


def mean_interval(values: Sequence[float], *, resamples: int, seed: int) -> Estimate:
    """Percentile bootstrap over the values, which have to be independent (for example one per dialogue)."""
    from scipy.stats import bootstrap

    if not values:
        return Estimate(mean=None, low=None, high=None, n=0)
    data = np.asarray(values, dtype=np.float64)
    mean, n = float(data.mean()), len(data)
    if n == 1:  # scipy refuses a single value, whose draws are all alike
        return Estimate(mean=mean, low=mean, high=mean, n=n)
    rng = np.random.default_rng(seed)
    # Draws in batches, to bound the memory of [batch, n].
    found = bootstrap(
        (data,),
        np.mean,
        n_resamples=resamples,
        batch=1 + 10**6 // n,
        confidence_level=LEVEL,
        method="percentile",
        rng=rng,
    ).confidence_interval
    return Estimate(mean=mean, low=float(found.low), high=float(found.high), n=n)


def sign_flip_p(differences: Sequence[float], *, resamples: int, seed: int) -> float:
    """Return the two-sided p-value of a paired permutation test.

    That is the share of random sign flips for which the mean of the differences is at least as far from 0. Exact for at
    most 12 pairs; else from `resamples` draws, including the observed data, so that it is never 0. 1.0 where all
    differences are 0. Raises ValueError for no differences.

    >>> sign_flip_p([1.0, 1.0, 1.0], resamples=1, seed=0)
    0.25
    """
    from scipy.stats import permutation_test

    if not differences:
        raise ValueError("a paired test needs at least one pair")
    if len(differences) == 1:  # scipy refuses a single pair; both of its signs are as far from 0
        return 1.0
    data = np.asarray(differences, dtype=np.float64)
    exact = 2 ** len(data) <= _EXACT
    found = permutation_test(
        (data,),
        lambda x, axis: np.abs(x.sum(axis=axis)),
        permutation_type="samples",
        n_resamples=_EXACT if exact else resamples,
        batch=1 + 10**6 // len(data),
        alternative="greater",
        vectorized=True,
        rng=np.random.default_rng(seed),
    )
    return float(found.pvalue)


def exact_agreement(a: Sequence[Hashable], b: Sequence[Hashable]) -> float | None:
    """Return the share of equal labels; None for no labels."""
    pairs = list(zip(a, b, strict=True))
    return sum(x == y for x, y in pairs) / len(pairs) if pairs else None


def cohen_kappa(a: Sequence[str], b: Sequence[str]) -> float | None:
    """Return the agreement beyond chance, (p_o - p_e) / (1 - p_e), with p_e from each side's label frequencies.

    1 for full agreement, 0 for chance level, in [-1, 1]. None for no labels, and where both sides use one and the same
    label throughout: chance alone agrees then.

    >>> cohen_kappa("yyn", "yyn"), cohen_kappa("yynn", "ynyn"), cohen_kappa("yy", "yy")
    (1.0, 0.0, None)
    """
    from sklearn.metrics import cohen_kappa_score

    if len({*a, *b}) < 2:
        return None
    return float(cohen_kappa_score(list(a), list(b)))


def share_interval(held: Sequence[bool]) -> Estimate:
    """Return a share with Wilson's score interval.

    For small or extreme counts, where a bootstrap has no variance: 5 of 5 is not a certainty.

    >>> found = share_interval([True] * 5)
    >>> round(found.low, 3), found.high
    (0.566, 1.0)
    """
    from scipy.stats import binomtest

    n, k = len(held), sum(held)
    if not n:
        return Estimate(mean=None, low=None, high=None, n=0)
    found = binomtest(k, n).proportion_ci(LEVEL, method="wilson")
    return Estimate(mean=k / n, low=float(found.low), high=float(found.high), n=n)


def clustered_share(held: Sequence[bool], clusters: Sequence[Hashable], *, resamples: int, seed: int) -> Estimate:
    """Return a share of values that are equal by cluster, such as responses of one wording, with a bootstrap over the
    clusters.

    Where all values are equal, a bootstrap has no variance: the interval is Wilson's for as many values as clusters.
    Without clusters of several values it is `share_interval`.
    """
    names = list(dict.fromkeys(clusters))
    if len(names) == len(held):
        return share_interval(held)
    index = {name: number for number, name in enumerate(names)}
    at = [index[name] for name in clusters]
    sums, sizes = np.bincount(at, weights=held), np.bincount(at)
    mean = float(sums.sum() / sizes.sum())
    if sums.sum() in (0, sizes.sum()):
        bound = share_interval([bool(mean)] * len(names))
        return Estimate(mean=mean, low=bound.low, high=bound.high, n=len(held))
    drawn = np.random.default_rng(seed).integers(len(names), size=(resamples, len(names)))
    shares = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    low, high = np.quantile(shares, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Estimate(mean=mean, low=float(low), high=float(high), n=len(held))
