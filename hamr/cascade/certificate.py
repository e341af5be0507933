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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hamr.calibration.mean_bound import MeanBound, audits_needed, half_width, lower_bound
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

    The numbers of audits assume no gap on average and a standard deviation of SPREAD. A sequence that ends after WINDOW
    audits confirms no smaller limit, however long the run is.
    """
    limit = config.certificate.limit
    if limit is None:
        return None
    calls = config.certificate.max_judge_frac
    budget = f"; narrowing calls the judge for at most {calls:.0%} of the replies" if config.certificate.narrow else ""
    needed = audits_needed(limit, SPREAD, WINDOW)
    if needed is None:
        return (
            f"certificate: a mean gap of at most {limit:g} cannot be confirmed, because a sequence ends after {WINDOW} "
            f"audits, which confirm {_limit_after(WINDOW):.2g}; raise rewards.consistency.certificate.limit, otherwise "
            f"only violations are found{budget}"
        )
    available = round(config.audit_frac * replies * steps)
    head = (
        f"certificate: to confirm a mean gap of at most {limit:g} inside the trust interval takes about {needed} "
        f"audits, at least {math.ceil(needed / (config.audit_frac * replies))} steps at "
        f"audit_frac={config.audit_frac:g}"
    )
    if needed <= available:
        return head + budget
    enough = needed / (steps * replies)
    remedy = f"raise audit_frac to {math.ceil(enough * 1000) / 1000:g} or more" if enough <= 1.0 else "raise the limit"
    return (
        f"{head}, and the run has {steps}, whose {available} audits confirm {_limit_after(available):.2g}: {remedy}, "
        f"otherwise only violations are found{budget}"
    )


def _limit_after(audits: int) -> float:
    """Return the limit that so many audits confirm, rounded up to two digits."""
    width = half_width(audits, SPREAD)
    scale = 10.0 ** (math.floor(math.log10(width)) - 1)
    return math.ceil(width / scale) * scale


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
        """Return by how much the mean gap has certainly been above the limit at some time of the present sequence, 0.0
        if it may always have been within."""
        return max(0.0, lower_bound([gap for _, gap in self._gaps]) - limit)

    def largest_part(self, now: Ends, limit: float, affordable: Callable[[Ends], bool] = lambda _: True) -> Ends:
        """Return the part of the interval with a mean gap of at most `limit` that holds the most audited replies.

        Audits are a fair sample of the replies inside, so it is the part with the fewest additional judge calls.
        Without such a part the interval becomes its upper end, or a point below it if the replies with just that score
        are not within the limit. If that is not `affordable` either, the part is the affordable one with the smallest
        mean gap.
        """
        s_r, gap = np.array(sorted(self._gaps)).T
        seen = np.unique(s_r)
        if seen.size > _ENDS:
            seen = seen[np.linspace(0, seen.size - 1, _ENDS).round().astype(int)]
        total = np.concatenate([[0.0], np.cumsum(gap)])
        within, smallest = (0, now), (math.inf, now)
        for low in (now[0], *seen.tolist()):
            for high in (now[1], *seen.tolist()):
                first, past = int(np.searchsorted(s_r, low)), int(np.searchsorted(s_r, high, "right"))
                count = past - first
                if count < FEWEST:
                    continue
                mean = float(total[past] - total[first]) / count
                if mean <= limit and count > within[0] and affordable((low, high)):
                    within = count, (low, high)
                elif mean < smallest[0] and affordable((low, high)):
                    smallest = mean, (low, high)
        if within[0]:
            return within[1]
        end = (now[1], now[1])
        at_end = gap[s_r == now[1]]  # several replies may have this very score
        if at_end.size and float(at_end.mean()) > limit:
            below = float(s_r[s_r < now[1]].max(initial=now[0]))
            end = ((below + now[1]) / 2,) * 2
        return end if affordable(end) else smallest[1]

    def state(self) -> dict[str, Any]:
        """Return the JSON state for a checkpoint, as accepted by `restore`."""
        return {"bound": self._bound.state(), "next": self._next.state(), "gaps": [list(gap) for gap in self._gaps]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`."""
        self._bound, self._next = MeanBound.of_state(state["bound"]), MeanBound.of_state(state["next"])
        self._gaps = [(s_r, gap) for s_r, gap in state["gaps"]]
