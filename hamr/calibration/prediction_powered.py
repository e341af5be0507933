"""Prediction-powered mean: many cheap values, corrected by the residuals of a random few, with an interval.

    mean = v + s r,    s = M / N,    v: mean of N values, r: mean residual (auditor's value - v) of n audits,

where M of the N values may be audited. Values of one cluster, such as the responses to one prompt, may depend on each
other. With C clusters, A of which have audits, and the sums over the N_c values, M_c auditable ones and n_c audits of
cluster c, the interval is mean +- t (sum_c e_c^2 C / (C - 1) + (s p / (A + 1))^2)^(1/2),

    e_c = (sum v_i - N_c v) / N + s (sum r_a - n_c r) / n + r (M_c - s N_c) / N,

with the 97.5 % quantile t of Student's distribution with A - 1 degrees of freedom. The last term under the root stands
for one more audit with a residual p, because audits that all agree, or nearly all, do not show how often a rare
residual occurs (`tests/unit/calibration/test_prediction_powered.py` measures the coverage).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from scipy.special import stdtrit

FEWEST = 20
"""Minimum number of clusters with audits for an interval."""


@dataclass
class _Cluster:
    """Sums over the values of one cluster."""

    count: int = 0
    value: float = 0.0
    auditable: int = 0
    audits: int = 0
    residual: float = 0.0


class DebiasedMean:
    """Running prediction-powered mean.

    Args:
        limits: Lowest and highest possible value, which limit the interval. None: not known.
        unseen: Residual p of the one more audit, half the range of an auditor's value.

    >>> found = DebiasedMean()
    >>> for i in range(200):
    ...     found.add(0.8 + 0.2 * (i % 2), auditable=i < 100, residual=-0.4 + 0.2 * (i % 2) if i < 40 else None)
    >>> [round(found.estimate()[name], 2) for name in ("mean", "low", "high")]
    [0.75, 0.71, 0.79]
    """

    def __init__(self, *, limits: tuple[float, float] | None = (0.0, 1.0), unseen: float = 0.5) -> None:
        self._limits, self._unseen, self._weight = limits, unseen, 0.0
        self._clusters: dict[Hashable, _Cluster] = {}

    def add(
        self,
        value: float,
        *,
        auditable: bool = True,
        residual: float | None = None,
        cluster: Hashable = None,
        weight: float = 1.0,
    ) -> None:
        """Add a value. `residual`: None without an audit. `cluster`: None if it depends on no other value. `weight`: of
        the auditor's value in this one."""
        self._weight = max(self._weight, weight)
        own = self._clusters.setdefault(len(self._clusters) if cluster is None else cluster, _Cluster())
        own.count += 1
        own.value += value
        own.auditable += auditable
        if residual is not None:
            own.audits += 1
            own.residual += residual

    def estimate(self) -> dict[str, float]:
        """Return `naive`, `mean`, `low`, `high` (95 %) and `audits`. Empty with fewer than FEWEST clusters audited."""
        clusters = list(self._clusters.values())
        audited = sum(c.audits > 0 for c in clusters)
        if audited < FEWEST:
            return {}
        count, audits = sum(c.count for c in clusters), sum(c.audits for c in clusters)
        value, residual = sum(c.value for c in clusters) / count, sum(c.residual for c in clusters) / audits
        share = sum(c.auditable for c in clusters) / count
        errors = (
            (c.value - c.count * value) / count
            + share * (c.residual - c.audits * residual) / audits
            + residual * (c.auditable - share * c.count) / count
            for c in clusters
        )
        unseen = share * self._unseen * self._weight / (audited + 1)
        variance = sum(e * e for e in errors) * len(clusters) / (len(clusters) - 1) + unseen**2
        mean, half = value + share * residual, float(stdtrit(audited - 1, 0.975)) * variance**0.5
        found = {"naive": value, "mean": mean, "low": mean - half, "high": mean + half}
        if self._limits is not None:
            lowest, highest = self._limits
            found = {name: min(max(figure, lowest), highest) for name, figure in found.items()}
        return {**found, "audits": float(audits)}
