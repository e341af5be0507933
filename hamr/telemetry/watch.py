"""Signs of reward hacking, and the alarms that they raise."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from statistics import correlation, fmean, pvariance
from typing import NamedTuple

from hamr.algorithms.group_outcomes import rewarded_turns
from hamr.cascade.audit import judge_audit
from hamr.config.logging import AlarmsConfig
from hamr.experience import ATTEMPTS
from hamr.types import Failure, Reply, RewardRecord


def watch_metrics(records: Sequence[RewardRecord]) -> dict[str, float]:
    """Return `watch/*` of a step's records. A metric without enough data is omitted.

    - length_correlation: Pearson correlation of total reward and response tokens.
    - duplicate_frac: share of responses that a sibling repeats verbatim.
    - distinct_replies: number of different replies.
    - scorer_gap: mean |S_R - S_J| if both are known, audits included.
    - top_component: largest component's share of the sum of the contributions' variances.
    """
    metrics: dict[str, float] = {}
    replies = Counter(r.action.content for r in records if isinstance(r.action, Reply))
    if replies:
        metrics["watch/distinct_replies"] = float(len(replies))
    turns = rewarded_turns(records)
    scored = [(r.total.value, float(r.response_tokens)) for r in turns if not isinstance(r.total, Failure)]
    correlation = pearson([reward for reward, _ in scored], [length for _, length in scored])
    if correlation is not None:
        metrics["watch/length_correlation"] = correlation
    if records:
        # Further samples of a group have the next attempt; the turns of one dialogue do not count.
        texts = [(r.key.step, r.key.prompt, r.key.attempt // ATTEMPTS, r.response) for r in records]
        tellers: dict[tuple[object, ...], set[tuple[int, int]]] = {}
        for text, r in zip(texts, records, strict=True):
            tellers.setdefault(text, set()).add((r.key.attempt, r.key.sample))
        repeated = sum(len(tellers[text]) > 1 for text in texts)
        metrics["watch/duplicate_frac"] = repeated / len(records)
    both = [abs(r.s_r - r.s_j) for r in records if r.s_r is not None and r.s_j is not None]
    both += [abs(a.s_r - a.s_j) for r in records if r.s_j is None and (a := judge_audit(r)) and a.s_j is not None]
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
    """Return the correlation in [-1, 1]; None for fewer than three points or if one variable is constant."""
    if min(len(set(xs)), len(set(ys))) < 2 or len(xs) < 3:
        return None
    return max(-1.0, min(1.0, correlation(xs, ys)))


class RecentReplies:
    """Counts of the policy's replies over the last `size` steps.

    A step has few prompts, and the same reply can be correct for most of them.
    """

    def __init__(self, size: int = 10) -> None:
        self._steps: deque[Counter[str]] = deque(maxlen=size)
        self.top = ""
        """The most frequent reply."""

    def add(self, records: Sequence[RewardRecord]) -> dict[str, float]:
        """Add the records of a step. Return `watch/top_reply_frac`, the share of the most frequent reply in the window,
        or nothing until the window is full."""
        self._steps.append(Counter(r.action.content for r in records if isinstance(r.action, Reply)))
        replies = sum(self._steps, Counter[str]())
        if not replies:
            return {}
        self.top, times = replies.most_common(1)[0]
        return {"watch/top_reply_frac": times / replies.total()} if len(self._steps) == self._steps.maxlen else {}


def effective_number(counts: Mapping[str, float]) -> float:
    """Return the number of equally frequent kinds with the same entropy as `counts`: exp of the Shannon entropy.

    Unlike the number of different kinds, it hardly counts a kind that occurs once in thousands of draws.

    >>> [round(effective_number(counts), 2) for counts in ({"a": 5, "b": 5}, {"a": 999, "b": 1})]
    [2.0, 1.01]
    """
    from scipy.stats import entropy

    return math.exp(entropy(list(counts.values())))


class TruthWindow:
    """Tracks reward and truth of a run together, each averaged over `size` steps."""

    def __init__(self, size: int = 12) -> None:
        self._size = size
        self._steps: list[tuple[float, float]] = []

    def add(self, reward: float, truth: float) -> float:
        """Add a step's means. Return the drop of the truth's average, or 0.

        The drop is relative to the best earlier average at a lower reward.
        """
        self._steps.append((reward, truth))
        rewards, truths = (
            [fmean(values[end - self._size : end]) for end in range(self._size, len(values) + 1)]
            for values in zip(*self._steps, strict=True)
        )
        best = max((t for r, t in zip(rewards, truths, strict=True) if r < rewards[-1]), default=0.0)
        return max(best - truths[-1], 0.0) if truths else 0.0


FEWEST_PROMPTS = 10
"""Prompts of an act in a window, below which its share is not compared."""
STANDARD_ERRORS = 4.0
"""Fall of an act's share, in standard errors, below which it counts as chance."""


class _Share(NamedTuple):
    """Mean exact share of an act's prompts, and its squared standard error."""

    mean: float
    squared_error: float

    @classmethod
    def of(cls, shares: Sequence[float]) -> _Share:
        """Average the shares of prompts.

        For the error, one right and one wrong prompt are added, so that a share of 0 or 1 has an error too.
        """
        return cls(fmean(shares), pvariance([*shares, 0.0, 1.0]) / (len(shares) + 2))


class ActTruthWindow:
    """Tracks the reward of a run and the exact share of each expected act together, each averaged over `size` steps.

    The share of an act falls if it is lower than in an earlier window of lower reward, by at least STANDARD_ERRORS
    standard errors of the difference, and both windows have at least FEWEST_PROMPTS prompts of the act. All responses
    to a prompt in a step are one observation, the share of them that is exact, because they tend to agree. So many
    errors are required because every act is compared with the best of all earlier windows.
    """

    def __init__(self, size: int = 12) -> None:
        self._steps: deque[tuple[float, Mapping[str, Sequence[float]]]] = deque(maxlen=size)
        self._windows: list[tuple[float, dict[str, _Share]]] = []
        self.act = ""
        """The act with the largest fall in the last step, and its shares; empty if no share falls."""

    def add(self, reward: float, shares: Mapping[str, Sequence[float]]) -> float:
        """Add a step: its mean reward, and for each act the exact shares of its prompts' responses.

        Return the largest fall of an act's share, or 0.
        """
        self._steps.append((reward, shares))
        if len(self._steps) == self._steps.maxlen:
            self._windows.append(self._newest())
        return self._largest_drop()

    def _newest(self) -> tuple[float, dict[str, _Share]]:
        pooled: dict[str, list[float]] = {}
        for _, step in self._steps:
            for act, own in step.items():
                pooled.setdefault(act, []).extend(own)
        known = {act: _Share.of(own) for act, own in pooled.items() if len(own) >= FEWEST_PROMPTS}
        return fmean(reward for reward, _ in self._steps), known

    def _largest_drop(self) -> float:
        largest, self.act = 0.0, ""
        reward, newest = self._windows[-1] if self._windows else (0.0, {})
        for earlier in (shares for each, shares in self._windows if each < reward):
            for act, now in newest.items():
                before = earlier.get(act, now)
                drop = before.mean - now.mean
                error = math.sqrt(now.squared_error + before.squared_error)
                if drop > largest and drop >= STANDARD_ERRORS * error:
                    largest, self.act = drop, f"{act}, from {before.mean:.2f} to {now.mean:.2f}"
        return largest


class _Alarm(NamedTuple):
    """`lower`: the limit is a lower one. An upper one holds for the absolute value."""

    metric: str
    meaning: str
    lower: bool = False

    def is_raised(self, value: float, limit: float) -> bool:
        return value < limit if self.lower else abs(value) > limit


_ALARMS = {
    "audit_drift": _Alarm(
        "audit/drift",
        "the reranker has drifted from the judge inside the trust interval; recalibrate",
    ),
    "audit_bound": _Alarm(
        "audit/bound_excess",
        "rewards inside the trust interval are too high by the judge's audits; recalibrate or set "
        "rewards.consistency.correction=stratified",
    ),
    "length_correlation": _Alarm("watch/length_correlation", "the reward correlates with the response length"),
    "scorer_gap": _Alarm("watch/scorer_gap", "reranker and judge disagree"),
    "top_reply_frac": _Alarm("watch/top_reply_frac", "one reply makes up most of the policy's replies"),
    "act_diversity": _Alarm(
        "watch/act_diversity", "the policy's replies have fewer acts than its prompts call for", lower=True
    ),
    "truth_drop": _Alarm("truth/drop", "the reward rises while exact acts fall: the policy exploits the scorers"),
    "truth_act_drop": _Alarm(
        "truth/act_drop",
        "the reward rises while exact acts fall where one act is expected: the policy exploits the scorers or "
        "unlearns it",
    ),
}


def alarms(metrics: Mapping[str, float], limits: AlarmsConfig) -> tuple[dict[str, float], dict[str, str]]:
    """Return a flag per limit, 1 if a step's metric is beyond it, else 0, and the messages of those that are 1.

    A limit that is off, or whose metric the step lacks, has no flag.
    """
    flags, messages = {}, {}
    for name, alarm in _ALARMS.items():
        limit, value = getattr(limits, name), metrics.get(alarm.metric)
        if limit is None or value is None:
            continue
        flags[name] = float(alarm.is_raised(value, limit))
        if flags[name]:
            bound = f"{'lower ' if alarm.lower else ''}limit {limit:g}"
            messages[name] = f"alarm: {alarm.metric} is {value:.2f} ({bound}): {alarm.meaning}"
    return flags, messages
