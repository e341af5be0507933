"""Router counters between two readings. Stores sums and counts only; ratios are computed when read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hamr.cascade.cached_pool import PoolAnswer
from hamr.types import Failure, RewardRecord, Vetoed


@dataclass
class _Times:
    """Aggregated seconds. Constant memory, because a reward service for other trainers may never be read."""

    count: int = 0
    total: float = 0.0
    longest: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.total += seconds
        self.longest = max(self.longest, seconds)

    @property
    def mean(self) -> float:
        return self.total / self.count


@dataclass
class RouterMetrics:
    """Mutable counters. `read` returns the metrics and resets them."""

    requests: int = 0
    malformed: int = 0
    questions: int = 0
    cache_hits: int = 0
    reasks: int = 0
    vetoed: int = 0
    fallbacks: int = 0
    rubric_items: int = 0
    judged_items: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    queue_s: dict[str, _Times] = field(default_factory=dict)
    service_s: dict[str, _Times] = field(default_factory=dict)

    def question(self, role: str, reply: PoolAnswer, *, again: bool = False) -> None:
        """Count one question that a response needed, unless it was refused and not sent. `again`: it was a retry."""
        if reply.answer.retry_in_s is not None:
            return
        self.questions += 1
        self.asked[role] += reply.asked
        self.cache_hits += not reply.asked
        self.reasks += again and reply.asked
        if reply.asked and (call := reply.answer.call) is not None:
            self.queue_s.setdefault(call.pool, _Times()).add(call.queue_s)
            self.service_s.setdefault(call.pool, _Times()).add(call.service_s)

    def record(self, record: RewardRecord) -> None:
        """Count one finished response."""
        self.requests += 1
        self.malformed += record.action is None
        self.fallbacks += record.fallback is not None
        self.vetoed += any(isinstance(component.outcome, Vetoed) for component in record.components)
        for component in record.components:
            if isinstance(component.outcome, Failure):
                self.failures[component.outcome.kind] += 1

    def read(self) -> dict[str, float]:
        """Return the metrics since the last reading. A ratio without data is omitted instead of reported as 0.

        Bands and escalation are in the records: `hamr.telemetry.metrics.router_metrics`.

        - router/requests: responses scored; /reranker_calls, /judge_calls: questions sent to the pools of the cascade
        - router/side_calls: questions sent for the judged side rewards, and to an ensemble for audits; /reasks:
          retries of unparseable judge answers; both only if any. /vetoed_frac: share of the responses for which a veto
          saved the other judge calls
        - router/judged_items_frac: share of the rubric items that the judge was asked about; only with their reranker
        - router/fallbacks: replies scored by the reranker alone because the judge was unavailable; only if any
        - router/malformed_frac: share of the responses
        - router/cache_hit_frac: share of the questions answered without a call
        - router/failures/<kind>: failed components
        - router/queue_s/<pool>/{mean,max}, router/service_s/<pool>/mean: seconds per question sent
        """
        values = {
            "router/requests": float(self.requests),
            "router/reranker_calls": float(self.asked["reranker"]),
            "router/judge_calls": float(self.asked["judge"]),
        }
        if self.asked["side"]:
            values["router/side_calls"] = float(self.asked["side"])
        if self.asked["side"] or self.reasks:
            values["router/reasks"] = float(self.reasks)
        if self.vetoed:
            values["router/vetoed_frac"] = self.vetoed / self.requests
        if self.rubric_items:
            values["router/judged_items_frac"] = self.judged_items / self.rubric_items
        if self.fallbacks:
            values["router/fallbacks"] = float(self.fallbacks)
        if self.requests:
            values["router/malformed_frac"] = self.malformed / self.requests
        if self.questions:
            values["router/cache_hit_frac"] = self.cache_hits / self.questions
        values |= {f"router/failures/{kind}": float(count) for kind, count in self.failures.items()}
        for pool, waits in self.queue_s.items():
            values[f"router/queue_s/{pool}/mean"] = waits.mean
            values[f"router/queue_s/{pool}/max"] = waits.longest
        for pool, times in self.service_s.items():
            values[f"router/service_s/{pool}/mean"] = times.mean
        vars(self).update(vars(RouterMetrics()))
        return values
