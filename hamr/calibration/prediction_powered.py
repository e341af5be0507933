"""Prediction-powered mean: many cheap values, corrected by the residuals of a random few, with an interval.

    mean = 1/N sum_i v_i + M/N * 1/n sum_a r_a,      variance = var(v) / N + (M/N)^2 var(r) / n

for N values v, of which M may be audited, and n audits with residuals r (judge's value - v).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, variance

FEWEST = 20
"""Minimum number of audits for an interval."""


def debiased_mean(values: Sequence[float], residuals: Sequence[float], auditable: int) -> dict[str, float]:
    """Return `mean`, `low`, `high` (95 %, normal) and `audits`. Empty with fewer than FEWEST audits.

    >>> found = debiased_mean([0.8, 1.0] * 100, [-0.4, -0.2] * 20, auditable=100)
    >>> [round(found[name], 2) for name in ("mean", "low", "high")]
    [0.75, 0.73, 0.77]
    """
    n, count = len(residuals), len(values)
    if n < FEWEST:
        return {}
    share = auditable / count
    mean = fmean(values) + share * fmean(residuals)
    half = 1.96 * (variance(values) / count + share**2 * variance(residuals) / n) ** 0.5
    return {"mean": mean, "low": mean - half, "high": mean + half, "audits": float(n)}
