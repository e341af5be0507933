"""Audits leave the reward alone, come at the rate that was asked for, and estimate without bias."""

import asyncio
import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedPool, judged, reranked, rollout, sample

from hamr.config.schema import ConsistencyConfig, RewardsConfig
from hamr.errors import ScorerTimeout
from hamr.observability.record_json import record_from_json, record_to_json
from hamr.routing.audit import FEWEST, AuditWindow, drawn, drift
from hamr.routing.cascade import Cascade
from hamr.routing.replay import replay
from hamr.routing.router import RewardRouter
from hamr.types import Audit, Component, RewardRecord, SampleKey, Scored


def score(s_r, judge, *, audit_frac=1.0, text="Why?"):
    """The record and what the judge was asked."""
    scorers = {"reranker": ScriptedPool("reranker", {text: reranked(s_r)}), "judge": ScriptedPool("judge", judge)}
    rewards = RewardsConfig(consistency=ConsistencyConfig(audit_frac=audit_frac))
    router = RewardRouter(rewards, scorers, count_tokens=len, deadline_s=5.0)
    record = asyncio.run(router.score(sample("May I ask why?"), rollout(text)))
    return record, len(scorers["judge"].asked), router.metrics(), rewards


def test_an_audited_reply_keeps_its_reward_and_shows_the_judges():
    record, asked, metrics, rewards = score(0.8, {"Why?": judged(0.1)})
    assert (record.total, record.band, record.s_j) == (Scored(value=0.8), "inside", None)
    assert (record.audit, asked) == (Audit(s_r=0.8, s_j=0.1), 1)
    assert metrics["router/escalated_frac"] == 0.0
    assert replay(record, rewards) == record.total
    assert record_from_json(record_to_json(record)) == record


def test_outside_the_interval_nobody_audits():
    record, asked, _, _ = score(0.2, {"Why?": judged(0.5)})
    assert (record.audit, asked) == (None, 1)


def test_without_a_share_the_judge_is_not_asked():
    record, asked, _, _ = score(0.8, {}, audit_frac=0.0)
    assert (record.audit, asked) == (None, 0)


def test_a_judge_that_fails_an_audit_fails_no_reward():
    def never(question):
        raise ScorerTimeout("too slow")

    record, _, _, _ = score(0.8, never)
    assert (record.total, record.audit) == (Scored(value=0.8), Audit(s_r=0.8, s_j=None))


@given(st.floats(0.0, 1.0), st.integers(0, 10_000))
def test_a_draw_follows_from_the_key(frac, number):
    key = SampleKey(run="r", step=3, prompt="p", sample=number)
    assert drawn(key, frac) == drawn(key, frac)
    assert drawn(key, 1.0)
    assert not drawn(key, 0.0)


def test_the_share_drawn_is_the_share_asked_for():
    keys = [SampleKey(run="r", step=i // 8, prompt="p", sample=i % 8) for i in range(20_000)]
    assert sum(drawn(key, 0.1) for key in keys) / len(keys) == pytest.approx(0.1, abs=5 * math.sqrt(0.09 / 20_000))


def reply(number, s_r, s_j, cascade, frac):
    key = SampleKey(run="r", step=1, prompt="p", sample=number)
    band = cascade.band(s_r)
    known = cascade.needs_judge(s_r)
    value = cascade.mix(s_r, s_j)
    return RewardRecord(
        key=key,
        total=Scored(value=value),
        components=(Component(name="consistency", outcome=Scored(value=value), weight=1.0),),
        action=None,
        band=band,
        s_r=s_r,
        s_j=s_j if known else None,
        audit=Audit(s_r=s_r, s_j=s_j) if not known and drawn(key, frac) else None,
    )


def test_the_gap_is_that_of_a_judge_for_everybody():
    rng, cascade, n, frac = Random(0), Cascade(0.3, 0.9, 0.1, 0.7), 4000, 0.2
    pairs = [(rng.random(), rng.random()) for _ in range(n)]
    window = AuditWindow(frac, replies=n, audits=n)
    figures = window.add(reply(i, s_r, s_j, cascade, frac) for i, (s_r, s_j) in enumerate(pairs))
    true = sum(abs(cascade.mix(s_r, s_j) - s_j) for s_r, s_j in pairs) / n
    # One standard error of the estimate is 0.006.
    assert figures["audit/gap"] == pytest.approx(true, abs=0.025)
    inside = [s_r - s_j for s_r, s_j in pairs if not cascade.needs_judge(s_r)]
    assert figures["audit/inside_gap"] == pytest.approx(sum(inside) / len(inside), abs=0.06)


def test_hand_computed_figures():
    cascade = Cascade(0.5, 0.9, 0.0, 1.0)
    window = AuditWindow(0.5)
    records = [reply(i, s_r, s_j, cascade, 0.0) for i, (s_r, s_j) in enumerate([(0.4, 0.7), (0.6, 0.2), (0.8, 0.8)])]
    audited = reply(3, 0.6, 0.2, cascade, 1.0)
    assert window.add(records) == {"audit/answered": 0.0, "audit/failed": 0.0}
    # R = S_J below the interval: a gap of 0. One audit stands for two of the three replies inside.
    assert window.add([audited]) == pytest.approx(
        {
            "audit/answered": 1,
            "audit/failed": 0,
            "audit/gap": 0.8 / 4,
            "audit/inside_gap": 0.4,
            "audit/disagree_frac": 1,
        }
    )


def test_drift_is_welchs_t():
    older, newer = [0.0, 0.2] * 10, [0.3, 0.5] * 10
    # Each half: variance 0.2 / 19, so the error is sqrt(2 * 0.2 / 19 / 20).
    assert drift(older + newer) == pytest.approx(0.3 / math.sqrt(0.2 / 19 / 20 * 2))
    assert drift(older[: FEWEST - 1] * 2) is None
    assert drift([0.1] * 100) is None
