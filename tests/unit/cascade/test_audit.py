"""Audits keep the reward, have the configured rate, and give unbiased estimates."""

import asyncio
import math
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedPool, judged, reranked, rollout, sample

from hamr.calibration.cascade import Cascade
from hamr.cascade.audit import FEWEST, AuditWindow, DebiasedRewards, drift, is_audited, reward_rows
from hamr.cascade.consistency import combine
from hamr.cascade.replay import replay
from hamr.cascade.router import RewardRouter
from hamr.config.rewards import ConsistencyConfig, RewardsConfig
from hamr.errors import ScorerTimeout
from hamr.telemetry.glossary import check_names
from hamr.telemetry.metrics import is_escalated
from hamr.telemetry.record_json import record_from_json, record_to_json
from hamr.types import Answer, Audit, Component, ReferenceScore, RewardRecord, SampleKey, Scored


def score(s_r, judge, *, audit_frac=1.0, text="Why?"):
    """The record, the number of questions to the judge, and the configuration."""
    scorers = {"reranker": ScriptedPool("reranker", {text: reranked(s_r)}), "judge": ScriptedPool("judge", judge)}
    rewards = RewardsConfig(consistency=ConsistencyConfig(audit_frac=audit_frac))
    router = RewardRouter(rewards, scorers, count_tokens=len, deadline_s=5.0)
    record = asyncio.run(router.score(sample("May I ask why?"), rollout(text)))
    return record, len(scorers["judge"].asked), rewards


def test_audit_records_the_judge_score_and_keeps_the_reward():
    record, asked, rewards = score(0.8, {"Why?": judged(0.1)})
    assert (record.total, record.band, record.s_j) == (Scored(value=0.8), "inside", None)
    assert (record.audit, asked) == (Audit(s_r=0.8, s_j=0.1, best=0.1, mix=0.05 * 0.8 + (1.0 - 0.05) * 0.1), 1)
    assert not is_escalated(record)
    assert replay(record, rewards) == record.total
    assert record_from_json(record_to_json(record)) == record


def test_replies_outside_the_interval_are_not_audited():
    record, asked, _ = score(0.2, {"Why?": judged(0.5)})
    assert (record.audit, asked) == (None, 1)


def test_judge_is_not_asked_with_audit_frac_zero():
    record, asked, _ = score(0.8, {}, audit_frac=0.0)
    assert (record.audit, asked) == (None, 0)


def test_failed_audit_does_not_fail_the_reward():
    def never(question):
        raise ScorerTimeout("too slow")

    record, _, _ = score(0.8, never)
    assert (record.total, record.audit) == (Scored(value=0.8), Audit(s_r=0.8, failure="judge_timeout"))


@given(st.floats(0.0, 1.0), st.integers(0, 10_000))
def test_audit_draw_is_determined_by_the_key(frac, number):
    key = SampleKey(run="r", step=3, prompt="p", sample=number)
    assert is_audited(key, frac) == is_audited(key, frac)
    assert is_audited(key, 1.0)
    assert not is_audited(key, 0.0)


def test_audited_fraction_matches_the_configured_one():
    keys = [SampleKey(run="r", step=i // 8, prompt="p", sample=i % 8) for i in range(20_000)]
    assert sum(is_audited(key, 0.1) for key in keys) / len(keys) == pytest.approx(0.1, abs=5 * math.sqrt(0.09 / 20_000))


@pytest.mark.parametrize("part", ["run", "step", "prompt", "sample", "attempt"])
def test_every_part_of_the_key_affects_the_draw(part):
    key = SampleKey(run="0", step=0, prompt="0", sample=0)
    values = map(str, range(40)) if part in ("run", "prompt") else range(40)
    assert {is_audited(replace(key, **{part: value}), 0.5) for value in values} == {True, False}


def reply(number, s_r, s_j, cascade, frac):
    key = SampleKey(run="r", step=1, prompt=f"p{number}", sample=0)
    band = cascade.band(s_r)
    known = cascade.needs_judge(s_r)
    value = cascade.mix(s_r, s_j)
    return RewardRecord(
        key=key,
        total=Scored(value=value),
        components=(Component(name="consistency", outcome=Scored(value=value), weight=1.0),),
        action=None,
        band=band,
        reference_scores=(ReferenceScore(reference=0, s_r=s_r, s_j=s_j if known else None),),
        s_r=s_r,
        s_j=s_j if known else None,
        audit=Audit(s_r=s_r, s_j=s_j, best=s_j) if not known and is_audited(key, frac) else None,
    )


def test_gap_estimate_matches_judging_every_reply():
    rng, cascade, n, frac = Random(0), Cascade(0.3, 0.9, 0.1, 0.7), 4000, 0.2
    pairs = [(rng.random(), rng.random()) for _ in range(n)]
    window = AuditWindow(replies=n, audits=n)
    figures = window.add(reply(i, s_r, s_j, cascade, frac) for i, (s_r, s_j) in enumerate(pairs))
    true = sum(abs(cascade.mix(s_r, s_j) - s_j) for s_r, s_j in pairs) / n
    # One standard error of the estimate is 0.006.
    assert figures["audit/gap"] == pytest.approx(true, abs=0.025)
    inside = [s_r - s_j for s_r, s_j in pairs if not cascade.needs_judge(s_r)]
    assert figures["audit/inside_gap"] == pytest.approx(sum(inside) / len(inside), abs=0.06)


def test_debiased_means_match_judging_every_reply():
    """The interval of the debiased mean covers the truth; the naive mean, fooled by 0.3 on average, is far outside."""
    rng, cascade, n = Random(1), Cascade(0.3, 0.9, 0.1, 0.7), 4000
    pairs = [(s_r, max(0.0, s_r - 0.6 * rng.random())) for s_r in (rng.random() for _ in range(n))]
    records = [reply(i, s_r, s_j, cascade, 0.1) for i, (s_r, s_j) in enumerate(pairs)]
    mixed = [replace(r, audit=replace(r.audit, mix=r.audit.s_j)) if r.audit else r for r in records]
    halved = [replace(r, components=(replace(r.components[0], weight=0.5),)) for r in mixed]
    true = sum(cascade.mix(s_r, s_j) if cascade.needs_judge(s_r) else s_j for s_r, s_j in pairs) / n
    figures = AuditWindow(replies=n, audits=n).add(halved)
    assert set(figures) >= {f"audit/{name}_debiased/audits" for name in ("consistency", "total")}
    check_names(figures, strict=True)
    found = DebiasedRewards(row for r in mixed for row in reward_rows(r, "judge")).estimates()
    assert (
        found["consistency"]
        == found["total"]
        == {key.rpartition("/")[2]: value for key, value in figures.items() if "consistency_debiased" in key}
    )
    low, mean, high = (found["consistency"][key] for key in ("low", "mean", "high"))
    assert low < true < high < found["consistency"]["naive"]
    change = figures["audit/total_debiased/mean"] - figures["audit/total_debiased/naive"]
    assert change == pytest.approx(0.5 * (mean - found["consistency"]["naive"]))


@pytest.mark.parametrize("weight", [0.1, 5.0])
def test_interval_of_the_total_scales_with_the_weight_of_the_consistency(weight):
    cascade = Cascade(0.3, 0.9, 0.1, 0.7)
    records = []
    for i in range(400):
        one = reply(i, 0.8, 0.8, cascade, 0.1)
        audit = replace(one.audit, mix=one.components[0].value) if one.audit else None
        part = replace(one.components[0], weight=weight)
        records.append(replace(one, audit=audit, components=(part,), total=Scored(value=weight * part.value)))
    found = DebiasedRewards.of(records).estimates()
    width = {name: figures["high"] - figures["low"] for name, figures in found.items()}
    assert width["total"] == pytest.approx(weight * width["consistency"]) and width["total"] > 0


CASCADE = Cascade(0.5, 0.9, 0.0, 1.0)


def test_audit_figures_match_hand_computed_values():
    window = AuditWindow()
    records = [reply(i, s_r, s_j, CASCADE, 0.0) for i, (s_r, s_j) in enumerate([(0.4, 0.7), (0.6, 0.2), (0.8, 0.8)])]
    audited = reply(3, 0.6, 0.2, CASCADE, 1.0)
    assert window.add(records) == {"audit/answered": 0.0, "audit/failed": 0.0}
    # R = S_J below the interval: a gap of 0. The one audit represents all three replies inside.
    assert window.add([audited]) == pytest.approx(
        {
            "audit/answered": 1,
            "audit/failed": 0,
            "audit/gap": 3 * 0.4 / 4,
            "audit/inside_gap": 0.4,
            "audit/disagree_frac": 1,
        }
    )


def test_fallback_reply_is_excluded_from_the_gap():
    judged_reply = reply(0, 0.4, 0.7, CASCADE, 0.0)
    without = replace(reply(1, 0.4, 0.7, CASCADE, 0.0), fallback="reranker", s_j=None)
    without = replace(without, reference_scores=(ReferenceScore(reference=0, s_r=0.4),))
    alone, both = AuditWindow().add([judged_reply]), AuditWindow().add([judged_reply, without])
    assert alone["audit/gap"] == both["audit/gap"] == 0.0


def test_inside_gap_uses_only_reranker_decided_replies():
    audited = reply(0, 0.6, 0.2, CASCADE, 1.0)
    assert AuditWindow().add([audited])["audit/inside_gap"] == pytest.approx(0.4)


# --- several references, and a group without judge calls ---------------------------------------


def several(scores, judge, **consistency):
    """The record of a reply to three references, and of which ones the judge was asked."""
    pools = {
        "reranker": ScriptedPool("reranker", lambda q: reranked(scores[q.variables["statement_a"]])),
        "judge": ScriptedPool("judge", lambda q: judge(q.variables["statement_a"])),
    }
    rewards = RewardsConfig.model_validate({"consistency": {"audit_frac": 1.0, **consistency}})
    router = RewardRouter(rewards, pools, count_tokens=len, deadline_s=5.0)
    record = asyncio.run(router.score(sample("a", "b", "c"), rollout("So?")))
    assert replay(record, rewards) == record.total
    return record, sorted(q.variables["statement_a"] for q in pools["judge"].asked), router.metrics()


def test_audit_judges_every_reference():
    """The reranker's best reference decides; judging every reply would have preferred another one."""
    said = {"a": 0.9, "b": 0.2, "c": 0.1}
    record, asked, metrics = several({"a": 0.7, "b": 0.8, "c": 0.3}, lambda a: judged(said[a]))
    assert (record.total, record.band) == (Scored(value=0.8), "inside")
    assert asked == ["a", "b", "c"]
    assert record.audit == Audit(s_r=0.8, s_j=0.2, best=0.9, mix=0.05 * 0.7 + (1.0 - 0.05) * 0.9)
    assert [s.s_j for s in record.reference_scores] == [None, None, 0.1], "what the reward rests on, and no more"
    assert metrics["router/judge_calls"] == 3


def test_partly_judged_reply_is_audited_on_the_other_references():
    record, asked, _ = several({"a": 0.7, "b": 0.3, "c": 0.5}, lambda a: judged({"a": 0.9, "b": 1.0, "c": 0.0}[a]))
    assert (record.band, record.s_j, asked) == ("below", 1.0, ["a", "b", "c"])
    assert record.audit == Audit(s_r=0.3, s_j=1.0, best=1.0, mix=0.05 * 0.3 + (1.0 - 0.05) * 1.0)
    spared, asked, _ = several({"a": 0.5, "b": 0.3, "c": 0.1}, lambda a: judged(0.5), judge_best_k=1)
    assert (spared.audit, asked) == (None, ["a"]), "the judge has scored the best reference"
    whole, asked, _ = several({"a": 0.1, "b": 0.3, "c": 0.5}, lambda a: judged(0.5))
    assert (whole.audit, asked) == (None, ["a", "b", "c"])


@pytest.mark.parametrize(("most", "audited"), [(1, ["a"]), (2, ["a", "b"]), (None, ["a", "b", "c"])])
def test_audit_asks_about_the_references_that_the_judge_may_score(most, audited):
    said = {"a": 0.2, "b": 0.6, "c": 0.9}
    record, asked, _ = several({"a": 0.9, "b": 0.8, "c": 0.75}, lambda a: judged(said[a]), judge_best_k=most)
    assert (record.total, asked) == (Scored(value=0.9), audited)
    best = max(said[a] for a in audited)
    mix = max(
        0.05 * s_r + (1.0 - 0.05) * said[a] for a, s_r in zip("abc", (0.9, 0.8, 0.75), strict=True) if a in audited
    )
    assert record.audit == Audit(s_r=0.9, s_j=0.2, best=best, mix=mix)
    figures = AuditWindow("judge", most).add([record])
    assert figures["audit/gap"] == pytest.approx(abs(0.9 - best))


def test_best_reference_is_audited_if_another_one_was_judged():
    """The judge has scored the only reference outside the interval, and the reranker prefers one inside."""
    said = {"a": 0.3, "b": 0.6, "c": 0.9}
    record, asked, _ = several({"a": 0.8, "b": 0.3, "c": 0.2}, lambda a: judged(said[a]), judge_best_k=1)
    assert (record.band, asked) == ("inside", ["a", "b"])
    assert record.audit is not None and (record.audit.s_j, record.audit.best) == (0.3, 0.6)


def test_audit_with_an_unjudged_reference_has_no_best():
    def fails_on_a(a):
        return Answer(failure="timeout") if a == "a" else judged(0.4)

    record, _, _ = several({"a": 0.7, "b": 0.8, "c": 0.7}, fails_on_a)
    assert (record.total, record.audit) == (Scored(value=0.8), Audit(s_r=0.8, s_j=0.4, failure="judge_timeout"))


def test_failures_and_fallbacks_are_not_audited():
    for fallback in ("exclude", "reranker"):
        record, asked, _ = several(
            {"a": 0.7, "b": 0.3, "c": 0.7}, lambda a: Answer(failure="unavailable"), fallback=fallback
        )
        assert (record.audit, asked) == (None, ["b"])


@pytest.mark.parametrize("lost", [0.0, 0.5])
def test_gap_estimate_is_unbiased_with_references_and_failed_audits(lost):
    """Three references: over many draws the estimate is too high as often as too low, also with failed audits."""
    cascade, n, frac = Cascade(0.3, 0.8, 0.1, 0.7), 300, 0.2
    config = ConsistencyConfig.model_validate({"cascade": dict(tau_a=0.3, tau_b=0.8, w1=0.1, w2=0.7)})
    errors = []
    for seed in range(60):
        rng, window, true = Random(seed), AuditWindow(replies=n, audits=n), 0.0
        records = []
        for number in range(n):
            pairs = [(rng.random(), rng.random()) for _ in range(3)]
            scores = [
                ReferenceScore(reference=i, s_r=s_r, s_j=s_j if cascade.needs_judge(s_r) else None)
                for i, (s_r, s_j) in enumerate(pairs)
            ]
            found, best = combine(scores, config, {}), max(s_j for _, s_j in pairs)
            true += abs(found.outcome.value - best) / n
            key = SampleKey(run=f"r{seed}", step=1, prompt="p", sample=number)
            hidden = any(s.s_j is None for s in scores)
            heard = Audit(s_r=found.decisive.s_r, s_j=None, best=None if rng.random() < lost else best)
            records.append(
                RewardRecord(
                    key=key,
                    total=found.outcome,
                    components=(Component(name="consistency", outcome=found.outcome, weight=1.0),),
                    action=None,
                    band=found.band,
                    reference_scores=tuple(scores),
                    audit=heard if hidden and is_audited(key, frac) else None,
                )
            )
        errors.append(window.add(records)["audit/gap"] - true)
    mean = sum(errors) / len(errors)
    spread = math.sqrt(sum((e - mean) ** 2 for e in errors) / (len(errors) - 1) / len(errors))
    assert abs(mean) < 4 * spread
    assert spread < 0.01


def test_drift_is_welch_t_statistic():
    older, newer = [0.0, 0.2] * 10, [0.3, 0.5] * 10
    # Each half: variance 0.2 / 19, so the error is sqrt(2 * 0.2 / 19 / 20).
    assert drift(older + newer) == pytest.approx(0.3 / math.sqrt(0.2 / 19 / 20 * 2))
    assert drift(older[: FEWEST - 1] * 2) is None
    assert drift([0.1] * 100) is None
