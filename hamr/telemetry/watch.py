"""Signs that a policy pleases its scorers rather than its customers, and the alarms that they raise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, pvariance

from hamr.config.logging import AlarmsConfig
from hamr.types import Failure, Reply, RewardRecord


def watch_metrics(records: Sequence[RewardRecord]) -> dict[str, float]:
    """`watch/*` of a step's records; a figure that has nothing to stand on is left out.

    length_correlation: Pearson's, of total reward and response tokens. duplicate_frac: share of the responses that a
    sibling has said word for word. top_reply_frac: share of the most frequent reply among the replies, of which
    distinct_replies are different. scorer_gap: mean |S_R - S_J| where both are known, audits included. top_component:
    the largest component's share of the sum of the contributions' variances.
    """
    metrics: dict[str, float] = {}
    replies = Counter(r.action.content for r in records if isinstance(r.action, Reply))
    if replies:
        metrics["watch/top_reply_frac"] = max(replies.values()) / replies.total()
        metrics["watch/distinct_replies"] = float(len(replies))
    scored = [(r.total.value, float(r.response_tokens)) for r in records if not isinstance(r.total, Failure)]
    correlation = pearson([reward for reward, _ in scored], [length for _, length in scored])
    if correlation is not None:
        metrics["watch/length_correlation"] = correlation
    if records:
        said = Counter((r.key.step, r.key.prompt, r.key.attempt, r.response) for r in records)
        metrics["watch/duplicate_frac"] = sum(count for count in said.values() if count > 1) / len(records)
    both = [abs(r.s_r - r.s_j) for r in records if r.s_r is not None and r.s_j is not None]
    both += [abs(r.audit.s_r - r.audit.s_j) for r in records if r.s_j is None and r.audit and r.audit.s_j is not None]
    if both:
        metrics["watch/scorer_gap"] = fmean(both)
    contributions: dict[str, list[float]] = {}
    for record in records:
        for component in record.components:
            if component.contribution is not None:
                contributions.setdefault(component.name, []).append(component.contribution)
    spread = [pvariance(values) for values in contributions.values()]
    if math.fsum(spread) > 0.0:
        metrics["watch/top_component"] = max(spread) / math.fsum(spread)
    return metrics


def pearson(xs: Sequence[float], ys: Sequence[float]) -> float | None:
    """Correlation in [-1, 1]; None for fewer than three points or where one does not vary."""
    if len(xs) < 3:
        return None
    x_mean, y_mean = fmean(xs), fmean(ys)
    xx = math.fsum((x - x_mean) ** 2 for x in xs)
    yy = math.fsum((y - y_mean) ** 2 for y in ys)
    xy = math.fsum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    return max(-1.0, min(1.0, xy / math.sqrt(xx * yy))) if xx > 0.0 and yy > 0.0 else None


class TruthWindow:
    """Watches reward and truth of a run together, each averaged over `size` steps."""

    def __init__(self, size: int = 12) -> None:
        self._size = size
        self._steps: list[tuple[float, float]] = []

    def add(self, reward: float, truth: float) -> float:
        """Take a step's means. Return how far the truth's average is below the best earlier one with a lower reward,
        or 0."""
        self._steps.append((reward, truth))
        rewards, truths = (
            [fmean(values[end - self._size : end]) for end in range(self._size, len(values) + 1)]
            for values in zip(*self._steps, strict=True)
        )
        best = max((t for r, t in zip(rewards, truths, strict=True) if r < rewards[-1]), default=0.0)
        return max(best - truths[-1], 0.0) if truths else 0.0


_SAYS = {
    "audit_drift": (
        "audit/drift",
        "inside the trust interval the reranker has moved against the judge; calibrate anew",
    ),
    "length_correlation": ("watch/length_correlation", "the reward goes with the length of the response"),
    "duplicate_frac": ("watch/duplicate_frac", "siblings say the same thing word for word"),
    "scorer_gap": ("watch/scorer_gap", "reranker and judge disagree"),
    "top_component": ("watch/top_component", "one component decides the reward"),
    "top_reply_frac": ("watch/top_reply_frac", "one reply makes up most of what the policy says"),
    "truth_drop": ("truth/drop", "the reward rises and exact acts fall: the scorers are being fooled"),
}


def flags(metrics: Mapping[str, float], limits: AlarmsConfig) -> dict[str, float]:
    """Name of each limit -> 1 where a step's figure passes it (in size, whatever its sign), else 0. A limit that is
    off, or whose figure the step has not, has no flag."""
    known = {name: (getattr(limits, name), metrics.get(metric)) for name, (metric, _) in _SAYS.items()}
    return {name: float(abs(v) > limit) for name, (limit, v) in known.items() if limit is not None and v is not None}


def alarms(metrics: Mapping[str, float], limits: AlarmsConfig) -> dict[str, str]:
    """Name of each limit that a step's figures pass -> a line that says so."""
    raised = {}
    for name, flag in flags(metrics, limits).items():
        metric, meaning = _SAYS[name]
        if flag:
            raised[name] = f"alarm: {metric} is {metrics[metric]:.2f} (limit {getattr(limits, name):g}): {meaning}"
    return raised
