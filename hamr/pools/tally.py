"""Counters of one client of a pool, for metrics and for status displays."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hamr.pools.circuit_breaker import Breaker
from hamr.pools.hedging import Hedger
from hamr.telemetry.metrics import percentile
from hamr.types import Answer

RECENT = 500
KINDS = ("asked", "scored", "retried", "timeout", "unparsable", "unavailable")
BREAKER_LEVEL = {"closed": 0.0, "half_open": 0.5, "open": 1.0}


@dataclass(kw_only=True)
class PoolTally:
    """Counts since the client's start. A question counts when its answer has arrived."""

    breaker: Breaker | None
    hedger: Hedger | None
    counts: Counter[str] = field(default_factory=Counter)
    hedge_cost: float = 0.0
    waiting: int = 0
    """Questions without an answer yet."""
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    """Latencies of the last answers, queueing included."""

    @contextmanager
    def waiting_one(self) -> Iterator[None]:
        """Count a question as waiting while the body runs."""
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    def count_answer(self, answer: Answer, *, retried: bool, seconds: float = 0.0) -> None:
        self.counts["asked"] += 1
        self.seconds.append(seconds)
        self.counts[answer.failure or "scored"] += 1
        self.counts["retried"] += retried
        if answer.call:
            self.counts["prompt_tokens"] += answer.call.prompt_tokens
            self.counts["cached_tokens"] += answer.call.cached_tokens

    def count_refusal(self) -> None:
        self.counts["refused"] += 1

    def count_hedge(self, answers: Sequence[Answer], *, second: bool) -> None:
        """Count a hedged request with these answers; `second` if they are those of the second try."""
        self.counts["hedge_won"] += len(answers) if second else 0
        self.hedge_cost += math.fsum(a.call.cost for a in answers if a.call)

    def metrics(self) -> dict[str, float]:
        """Return the counts so far: questions asked, scored, retried, each kind of failure, breaker and hedging.

        `prefix_hit_frac` is present only if prompt tokens were counted, `hedge_after_s` once enough latencies are
        known.
        """
        values = {kind: float(self.counts[kind]) for kind in KINDS}
        if self.breaker:
            values["refused"] = float(self.counts["refused"])
            values["breaker"] = BREAKER_LEVEL[self.breaker.state]
            values["breaker_openings"] = float(self.breaker.openings)
        if self.hedger:
            values["hedged"], values["hedge_won"] = float(self.hedger.spent), float(self.counts["hedge_won"])
            values["hedge_cost"] = self.hedge_cost
            late = self.hedger.late_after_s()
            values |= {"hedge_after_s": late} if late is not None else {}
        if self.counts["prompt_tokens"]:
            values["prefix_hit_frac"] = self.counts["cached_tokens"] / self.counts["prompt_tokens"]
        return values

    def describe(self) -> dict[str, Any]:
        """Return the pool's state.

        Returns:
            `breaker`: state of the circuit breaker (None: the pool has none).
            `retry_in_s`: seconds until it admits questions.
            `hedge_budget`: questions that may be hedged now (None: the pool does not hedge).
            `asked`: questions answered so far.
            `waiting`: questions without an answer.
            `p50_s`, `p99_s`: latency quantiles of the last answers (None: there are none).
        """
        refusing = self.breaker is not None and self.breaker.state != "closed"
        return {
            "breaker": self.breaker.state if self.breaker else None,
            "retry_in_s": self.breaker.retry_in_s() if self.breaker and refusing else 0.0,
            "hedge_budget": self.hedger.budget if self.hedger else None,
            "asked": self.counts["asked"],
            "waiting": self.waiting,
            "p50_s": percentile(list(self.seconds), 50) if self.seconds else None,
            "p99_s": percentile(list(self.seconds), 99) if self.seconds else None,
        }
