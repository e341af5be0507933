"""Counters of a pool's client, without a pool."""

from __future__ import annotations

import pytest

from hamr.config.faults import BreakerConfig, HedgeConfig
from hamr.pools.circuit_breaker import Breaker
from hamr.pools.hedging import Hedger
from hamr.pools.tally import PoolTally
from hamr.telemetry.glossary import lookup
from hamr.types import Answer, ScorerCall


def answer(cost: float = 0.0, **how: object) -> Answer:
    call = ScorerCall(
        pool="p",
        model="m",
        prompt_version="1",
        replica="r",
        queue_s=0.0,
        service_s=0.0,
        prompt_tokens=100,
        output_tokens=1,
        cost=cost,
        cached_tokens=25,
    )
    return Answer(call=call, **how)  # type: ignore[arg-type]


def test_plain_pool_reports_only_basic_counts() -> None:
    tally = PoolTally(breaker=None, hedger=None)
    assert tally.metrics() == {
        "asked": 0, "scored": 0, "retried": 0, "timeout": 0, "unparsable": 0, "unavailable": 0
    }  # fmt: skip
    assert tally.describe() == {
        "breaker": None, "retry_in_s": 0.0, "hedge_budget": None, "asked": 0, "waiting": 0, "p50_s": None,
        "p99_s": None,
    }  # fmt: skip


def test_tally_reports_recent_latency_and_waiting_questions() -> None:
    tally = PoolTally(breaker=None, hedger=None)
    for seconds in (1.0, 2.0, 5.0):
        tally.count_answer(answer(score=1.0), retried=False, seconds=seconds)
    with tally.waiting_one(), tally.waiting_one():
        assert tally.describe()["waiting"] == 2
    described = tally.describe()
    assert (described["asked"], described["waiting"], described["p50_s"]) == (3, 0, 2.0)
    assert described["p99_s"] == pytest.approx(4.94)


def test_every_metric_is_recorded_and_documented() -> None:
    now = [0.0]
    breaker = Breaker(BreakerConfig(min_count=1, cooldown_s=5.0), lambda: now[0])
    hedger = Hedger(HedgeConfig(min_count=1, budget_frac=0.5), lambda: now[0])
    tally = PoolTally(breaker=breaker, hedger=hedger)
    tally.count_answer(answer(score=0.5), retried=True)
    tally.count_answer(answer(failure="timeout"), retried=False)
    tally.count_answer(Answer(failure="unavailable"), retried=False)
    hedger.record_sent(4)
    hedger.record_served(3.0)
    assert hedger.spend(2)
    tally.count_hedge([answer(cost=1.5), answer(cost=0.5)], second=True)
    breaker.settle(breaker.admit() or 0, False)
    tally.count_refusal()
    assert tally.metrics() == {
        "asked": 3, "scored": 1, "retried": 1, "timeout": 1, "unparsable": 0, "unavailable": 1,
        "refused": 1, "breaker": 1.0, "breaker_openings": 1,
        "hedged": 2, "hedge_won": 2, "hedge_cost": 2.0, "hedge_after_s": 3.0,
        "prefix_hit_frac": 0.25,
    }  # fmt: skip
    assert all(lookup(f"pool/p/{name}") for name in tally.metrics())
    now[0] = 1.0
    described = tally.describe()
    assert (described["breaker"], described["retry_in_s"], described["hedge_budget"]) == ("open", 4.0, 0.0)
    now[0] = 5.0
    assert tally.metrics()["breaker"] == 0.5
