"""Prediction-powered mean: many cheap values, corrected by the residuals of a random few, with an interval.

    mean = 1/N sum_i v_i + M/N * 1/n sum_a r_a,      variance = var(v) / N + (M/N)^2 var(r) / n

for N values v, of which M may be audited, and n audits with residuals r (auditor's value - v).
"""

from __future__ import annotations

FEWEST = 20
"""Minimum number of audits for an interval."""


class _Moments:
    """Count, mean and variance of values that are not kept (Welford's update)."""

    def __init__(self) -> None:
        self.count, self.mean, self._squares = 0, 0.0, 0.0

    def add(self, value: float) -> None:
        self.count += 1
        delta = value - self.mean
        self.mean += delta / self.count
        self._squares += delta * (value - self.mean)

    @property
    def variance(self) -> float:
        return self._squares / (self.count - 1)


class DebiasedMean:
    """Running prediction-powered mean.

    >>> found = DebiasedMean()
    >>> for i in range(200):
    ...     found.add(0.8 + 0.2 * (i % 2), auditable=i < 100, residual=-0.4 + 0.2 * (i % 2) if i < 40 else None)
    >>> [round(found.estimate()[name], 2) for name in ("mean", "low", "high")]
    [0.75, 0.73, 0.77]
    """

    def __init__(self) -> None:
        self._values, self._residuals, self._auditable = _Moments(), _Moments(), 0

    def add(self, value: float, *, auditable: bool = True, residual: float | None = None) -> None:
        """Add a value. `residual` is None without an audit."""
        self._values.add(value)
        self._auditable += auditable
        if residual is not None:
            self._residuals.add(residual)

    def estimate(self) -> dict[str, float]:
        """Return `naive`, `mean`, `low`, `high` (95 %, normal) and `audits`. Empty with fewer than FEWEST audits."""
        n, count = self._residuals.count, self._values.count
        if n < FEWEST:
            return {}
        share = self._auditable / count
        mean = self._values.mean + share * self._residuals.mean
        half = 1.96 * (self._values.variance / count + share**2 * self._residuals.variance / n) ** 0.5
        return {"naive": self._values.mean, "mean": mean, "low": mean - half, "high": mean + half, "audits": float(n)}
