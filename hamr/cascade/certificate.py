"""Certificate of the trusted interval: a bound on how far the rewards inside it are above the judge's, from audits.

The gap of an audited reply is the reward that it would have had without the audit, corrected if `correction` is on,
minus the judge's (`Audit.mix`). The gap is signed: noise of either scorer cancels, a style that fools the reranker does
not, and the mean gap is what a policy gains from fooling it. `hamr.calibration.mean_bound` bounds its mean at all
times.

A sequence is replaced after WINDOW audits, so that it follows the policy, and when the interval moves. Its successor
starts half-way, so that a bound never rests on fewer than WINDOW / 2 audits after the start. Each sequence has its own
error probability.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hamr.calibration.mean_bound import MeanBound, audits_needed, lower_bound
from hamr.config.rewards import ConsistencyConfig

WINDOW = 800
"""Number of audits after which a sequence is replaced."""
FEWEST = 20
"""Minimum number of audits inside an interval to narrow to it."""
_ENDS = 32
SPREAD = 0.2
"""Standard deviation of the gap assumed before the first audit."""

Ends = tuple[float, float]


def feasibility(config: ConsistencyConfig, *, replies: int, steps: int) -> str | None:
    """Return the requirements of the configured limit with at most `replies` replies a step, None without a limit.

    The number of audits assumes no gap on average and a standard deviation of SPREAD.
    """
    limit = config.certificate.limit
    if limit is None:
        return None
    needed = audits_needed(limit, SPREAD)
    if needed is None:
        return f"certificate: limit {limit:g} is too small for any run; raise rewards.consistency.certificate.limit"
    first = math.ceil(needed / (config.audit_frac * replies))
    head = (
        f"certificate: to confirm a mean gap of at most {limit:g} inside the trust interval takes about {needed} "
        f"audits, at least {first} steps at audit_frac={config.audit_frac:g}"
    )
    if first <= steps:
        return head
    enough = needed / (steps * replies)
    remedy = f"raise audit_frac to {enough:.2g} or more" if enough <= 1.0 else "raise the limit"
    return f"{head}, and the run has {steps}: {remedy}, otherwise only violations are found"


class Certificate:
    """Confidence sequence on the mean gap inside the present interval."""

    def __init__(self) -> None:
        self._bound, self._next = MeanBound(), MeanBound()
        self._gaps: list[tuple[float, float]] = []

    def add(self, gaps: Sequence[tuple[float, float]]) -> None:
        """Add (S_R, gap) of audited replies inside the interval, in an order that does not depend on the gaps."""
        for s_r, gap in gaps:
            self._gaps.append((s_r, gap))
            self._bound.add(gap)
            if self._bound.count > WINDOW // 2:
                self._next.add(gap)
            if self._bound.count == WINDOW:
                self._bound, self._next = self._next, MeanBound()
                self._gaps = self._gaps[-WINDOW // 2 :]

    def metrics(self) -> dict[str, float]:
        """Return `audit/bound_*`. Empty before the first audit."""
        if not self._bound.count:
            return {}
        low, high = self._bound.interval
        return {"audit/bound_lower": low, "audit/bound_upper": high, "audit/bound_audits": float(self._bound.count)}

    def excess(self, limit: float) -> float:
        """Return by how much the mean gap has certainly been above the limit, 0.0 if it may always have been within."""
        return max(0.0, lower_bound([gap for _, gap in self._gaps]) - limit)

    def largest_part(self, now: Ends, limit: float) -> Ends:
        """Return the part of the interval with a mean gap of at most `limit` that holds the most audited replies.

        Audits are a fair sample of the replies inside, so it is the part with the fewest additional judge calls.
        Without such a part the interval becomes its upper end.
        """
        s_r, gap = np.array(sorted(self._gaps)).T
        seen = np.unique(s_r)
        if seen.size > _ENDS:
            seen = seen[np.linspace(0, seen.size - 1, _ENDS).round().astype(int)]
        total = np.concatenate([[0.0], np.cumsum(gap)])
        best, kept = (now[1], now[1]), FEWEST - 1
        for low in (now[0], *seen.tolist()):
            for high in (now[1], *seen.tolist()):
                first, past = int(np.searchsorted(s_r, low)), int(np.searchsorted(s_r, high, "right"))
                if past - first > kept and total[past] - total[first] <= limit * (past - first):
                    best, kept = (low, high), past - first
        return best

    def state(self) -> dict[str, Any]:
        """Return the JSON state for a checkpoint, as accepted by `restore`."""
        return {"bound": self._bound.state(), "next": self._next.state(), "gaps": [list(gap) for gap in self._gaps]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`."""
        self._bound, self._next = MeanBound.of_state(state["bound"]), MeanBound.of_state(state["next"])
        self._gaps = [(s_r, gap) for s_r, gap in state["gaps"]]
