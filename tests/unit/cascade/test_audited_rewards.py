"""Rewards corrected by audits: what a record holds, that it replays, and that `off` changes nothing."""

import asyncio
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedPool, judged, reranked, rollout, sample

from hamr.calibration.audit_correction import AuditCorrection, Residual
from hamr.cascade import audited_rewards
from hamr.cascade.audit import AuditWindow, value_of
from hamr.cascade.audited_rewards import correct, residuals, share_audits, text_features
from hamr.cascade.cascade_controller import CascadeController, ControlledRewarder
from hamr.cascade.replay import replay
from hamr.cascade.router import RewardRouter
from hamr.config.rewards import RewardsConfig
from hamr.telemetry.glossary import check_names
from hamr.telemetry.record_json import record_from_json, record_to_json
from hamr.types import Answer, Component, ReferenceScore, Reply, RewardRecord, RolloutGroup, Scored

POINT = sample("May I ask why?")
GONE = Answer(failure="timeout")


def rewards_with(**consistency):
    return RewardsConfig.model_validate({"consistency": {"audit_frac": 0.5, **consistency}, "format": {"weight": 0.5}})


def scored_by(answers, rewards):
    """Return a router whose scorers answer "Why i now?" with `answers[i]`: (S_R, judge's answer)."""
    pools = {
        "reranker": ScriptedPool(
            "reranker", lambda q: reranked(answers[int(q.variables["statement_b"].split()[1])][0])
        ),
        "judge": ScriptedPool("judge", lambda q: answers[int(q.variables["statement_b"].split()[1])][1]),
    }
    return RewardRouter(rewards, pools, count_tokens=len, deadline_s=5.0, cache_size=0)


def train(rewards, answers, steps=3):
    """Score `answers` in every step as a run does. Return its records and metrics."""
    router = scored_by(answers, rewards)
    rewarder = ControlledRewarder(router, CascadeController(rewards.consistency))

    async def run():
        found = []
        for step in range(steps):
            found += [
                await rewarder.score(POINT, rollout(f"Why {i} now?", 100 * step + i)) for i in range(len(answers))
            ]
            metrics = rewarder.step_ended()
        await router.close()
        return found, metrics

    return asyncio.run(run())


shares = st.floats(0, 1)
answers = st.lists(st.tuples(shares, st.one_of(shares.map(judged), st.just(GONE))), min_size=1, max_size=6)


@settings(max_examples=25)
@given(answers)
def test_corrected_record_replays_to_the_same_number(answers):
    rewards = rewards_with(correction="stratified")
    records, _ = train(rewards, answers)
    for record in records:
        again = record_from_json(record_to_json(record))
        assert again == record
        assert replay(again, rewards) == record.total
        assert (record.correction is not None) == (record.band == "inside")


@settings(max_examples=25)
@given(answers)
def test_off_gives_the_records_of_a_run_without_correction(answers):
    plain, _ = train(rewards_with(audit_frac=0.0), answers)
    off, _ = train(rewards_with(), answers)
    for one, other in zip(plain, off, strict=True):
        assert other.total == one.total
        assert other.components == one.components
        assert '"correction"' not in record_to_json(other)


def test_unaudited_replies_are_shifted_and_audited_ones_take_the_judge():
    records, metrics = train(rewards_with(correction="stratified"), [(0.8, judged(0.1))] * 8, steps=12)
    check_names(metrics, strict=True)
    mix = 0.05 * 0.8 + (1.0 - 0.05) * 0.1
    audited = [r for r in records if r.audit]
    others = [r for r in records if not r.audit]
    assert audited
    assert others
    assert {r.components[0].value for r in audited} == {mix}
    assert {r.correction.residual for r in audited} == {mix - 0.8}
    assert {r.components[0].value for r in others[:2]} == {0.8}, "no audit of an earlier step yet"
    assert others[-1].components[0].value == pytest.approx(mix, abs=0.15)
    assert others[-1].total == Scored(value=others[-1].components[0].value + 0.5)
    assert {r.correction.propensity for r in records} == {0.5}
    assert metrics["audit/correction_max"] > 0.4
    assert 0.0 < metrics["audit/correction_audits"] < len(audited), "those of the last step count in the next one"


@settings(max_examples=25)
@given(st.lists(st.integers(0, 2), min_size=2, max_size=12), answers)
def test_copies_of_an_audited_reply_take_its_reward(texts, answers):
    rewards = rewards_with(correction="stratified", audit_frac=0.3)
    router = scored_by((answers * 3)[:3], rewards)
    rewarder = ControlledRewarder(router, CascadeController(rewards.consistency))
    rollouts = tuple(rollout(f"Why {text} now?", number) for number, text in enumerate(texts))

    async def score():
        records = [await rewarder.score(POINT, one) for one in rollouts]
        await router.close()
        return tuple(records)

    group = RolloutGroup(sample=POINT, rollouts=rollouts, records=asyncio.run(score()))
    shared = share_audits(group)
    judged_texts = {
        t: r.audit.mix for t, r in zip(texts, group.records, strict=True) if r.audit and r.audit.mix is not None
    }
    for text, before, after in zip(texts, group.records, shared.records, strict=True):
        if text in judged_texts and before.correction is not None:
            assert after.components[0].value == judged_texts[text]
            assert replay(record_from_json(record_to_json(after)), rewards) == after.total
        else:
            assert after == before
        assert value_of(after) == value_of(before), "estimates over unaudited replies do not change"
    assert residuals(shared.records, 0) == residuals(group.records, 0), "an audit counts once"


def test_copies_in_other_contexts_keep_their_own_reward():
    rewards = rewards_with(correction="stratified", audit_frac=0.5)
    records, _ = train(rewards, [(0.8, judged(0.1))] * 8, steps=1)
    rollouts = tuple(replace(rollout("Why 0 now?", i), prompt_ids=(i,)) for i in range(8))
    records = tuple(replace(record, action=Reply(content="Why 0 now?")) for record in records)
    group = RolloutGroup(sample=POINT, rollouts=rollouts, records=records)
    assert {bool(record.audit) for record in records} == {True, False}
    assert share_audits(group) == group


def test_failed_audit_leaves_the_shifted_value():
    records, metrics = train(rewards_with(correction="stratified"), [(0.8, GONE)] * 4)
    assert {r.components[0].value for r in records} == {0.8}
    assert metrics["audit/correction_audits"] == 0.0


def test_gap_of_audits_is_that_of_the_corrected_reward():
    """An audited reply takes the judge's reward. Counted as such, it would hide the gap of the replies not audited."""
    records, _ = train(rewards_with(correction="stratified"), [(0.8, judged(0.1))] * 8, steps=1)
    assert AuditWindow().add(records)["audit/gap"] == pytest.approx(0.7)


def test_features_are_those_of_the_chat_that_scorers_compare(monkeypatch):
    seen = []
    monkeypatch.setattr(audited_rewards, "text_features", lambda *texts: seen.append(texts) or text_features(*texts))

    def in_sage_form(chat):
        return json.dumps(
            {"classification_output": {}, "cot": "", "now_path": [], "finals": {"Action": "x"}, "chat": chat}
        )

    made = RewardRecord(
        key=rollout("x").key, total=Scored(value=0.5), action=Reply(content=in_sage_form("Why now?")), s_r=0.5,
        components=(Component(name="consistency", outcome=Scored(value=0.5), weight=1.0),), band="inside",
        cascade=(0.3, 0.9, 0.5, 0.5), reference_scores=(ReferenceScore(reference=0, s_r=0.5),),
    )  # fmt: skip
    audited_rewards.correct(made, sample(in_sage_form("May I ask why?")), AuditCorrection(), 0.5)
    assert seen == [("Why now?", "May I ask why?")]


def test_correction_is_clipped_to_a_score():
    [record], _ = train(rewards_with(audit_frac=0.0), [(0.7, judged(0.5))], steps=1)
    model = AuditCorrection()
    model.update(0, [Residual(step=0, strata=("score=0",), residual=-1.0)] * 100)
    corrected = correct(record, POINT, model, propensity=0.05)
    assert corrected.components[0].value == 0.0
    assert corrected.correction.value == 0.7


@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("", {"length": 0, "similarity": 0, "repetition": 2, "markup": 0, "question": 0}),
        ("May I ask why?", {"length": 1, "similarity": 4, "repetition": 0, "markup": 0, "question": 1}),
        ("- one\n- two", {"length": 0, "similarity": 0, "repetition": 0, "markup": 1, "question": 0}),
        ("no " * 40, {"length": 4, "similarity": 0, "repetition": 2, "markup": 0, "question": 0}),
        ("您好请问还需要什么帮助吗？", {"length": 2, "similarity": 0, "repetition": 0, "markup": 0, "question": 1}),
    ],
)
def test_visible_features_of_a_reply(text, levels):
    assert text_features(text, "May I ask why?") == levels
