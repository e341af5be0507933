"""Replay of a record reproduces its total for any scores and failures."""

import asyncio
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedPool, judged, reranked, rollout, sample

from hamr.cascade.replay import replay
from hamr.cascade.router import RewardRouter
from hamr.config.cascade_controller import CascadeConfig
from hamr.config.rewards import ConsistencyConfig, FormatConfig, LengthConfig, RewardsConfig, RulesConfig
from hamr.errors import DataError, MissingScore
from hamr.rewards.mix import with_turn_reward
from hamr.telemetry.record_json import record_from_json, record_to_json
from hamr.types import (
    TURN_REWARD,
    Absent,
    Answer,
    Component,
    JudgeTimeout,
    JudgeUnavailable,
    MalformedResponse,
    ReferenceScore,
    RewardRecord,
    SampleKey,
    Scored,
    Stale,
    ToolCall,
)

TOOL = ToolCall(name="lookup", parameters={"id": 7})
TEXTS = ["a reply", "stupid", "", '<tool_call>{"name": "lookup", "arguments": {"id": 7}}</tool_call>', "long " * 30]

shares = st.floats(0, 1)
failures = st.sampled_from(["timeout", "unparsable", "unavailable"]).map(lambda kind: Answer(failure=kind))
reranker_answers = st.one_of(shares.map(reranked), failures)
judge_answers = st.one_of(st.builds(judged, shares, st.sampled_from(["yes", "part", "no", "mumble"])), failures)
weights = st.sampled_from([0.0, 0.1, 1.0, 3.0])


@st.composite
def rewards_configs(draw):
    tau_a, tau_b = sorted((draw(shares), draw(shares)))
    mode = draw(st.sampled_from(["hybrid", "hybrid", "reranker", "soft_judge", "hard_judge"]))
    return RewardsConfig(
        consistency=ConsistencyConfig(
            weight=draw(weights),
            mode=mode,
            fallback=draw(st.sampled_from(["exclude", "reranker"])) if mode == "hybrid" else "exclude",
            cascade=CascadeConfig(tau_a=tau_a, tau_b=tau_b, w1=draw(shares), w2=draw(shares)),
            judge_best_k=draw(st.sampled_from([None, 1, 2])),
        ),
        format=FormatConfig(weight=draw(weights)),
        length=LengthConfig(weight=draw(weights)),
        rules=RulesConfig(weight=draw(weights)),
    )


@given(st.data(), rewards_configs(), st.sampled_from(TEXTS), st.integers(1, 4), st.booleans())
def test_replay_reproduces_the_recorded_total_exactly(data, rewards, text, references, with_tool):
    reranker = ScriptedPool("reranker", lambda question: data.draw(reranker_answers))
    judge = ScriptedPool("judge", lambda question: data.draw(judge_answers))
    point = sample(*(f"reference {i}" for i in range(references)), *([TOOL] if with_tool else []))

    async def scored():
        pools = {"reranker": reranker, "judge": judge}
        router = RewardRouter(rewards, pools, count_tokens=lambda t: len(t.split()), deadline_s=30.0)
        return await router.score(point, rollout(text))

    record = record_from_json(record_to_json(asyncio.run(scored())))
    assert replay(record, rewards) == record.total
    if record.fallback:
        assert rewards.consistency.fallback == "reranker"
        assert isinstance(record.total, Scored)


def recorded(*scores, outcome, weight=1.0, name="consistency"):
    component = Component(name=name, outcome=outcome, weight=weight)
    return RewardRecord(
        key=SampleKey(run="r", step=0, prompt="s", sample=0), total=outcome, components=(component,), action=None,
        band="none", reference_scores=scores,
    )  # fmt: skip


def test_replay_with_another_configuration_recomputes_the_total():
    record = recorded(ReferenceScore(reference=0, s_r=0.5, s_j=0.8, verdict="yes"), outcome=Scored(value=0.785))

    def under(**consistency):
        return replay(record, RewardsConfig(consistency=ConsistencyConfig(**consistency)))

    assert under().value == pytest.approx(0.05 * 0.5 + 0.95 * 0.8)
    assert under(mode="reranker") == Scored(value=0.5)
    assert under(mode="soft_judge") == Scored(value=0.8)
    assert under(mode="hard_judge", weight=2.0) == Scored(value=2.0)
    assert under(cascade=CascadeConfig(tau_a=0.4)) == Scored(value=0.5)


def test_replay_with_a_binary_hard_judge_changes_partial_verdicts():
    record = recorded(ReferenceScore(reference=0, s_r=0.9, s_j=0.5, verdict="part"), outcome=Scored(value=0.9))
    for part in (0.5, 0.0):
        consistency = ConsistencyConfig(mode="hard_judge", hard_part=part)
        assert replay(record, RewardsConfig(consistency=consistency)) == Scored(value=part)


def test_replay_raises_on_a_score_that_was_not_recorded():
    record = recorded(ReferenceScore(reference=0, s_r=0.8), outcome=Scored(value=0.8))
    with pytest.raises(MissingScore):
        replay(record, RewardsConfig(consistency=ConsistencyConfig(mode="soft_judge")))


def test_recorded_failure_stays_unless_it_is_not_needed():
    gone = JudgeTimeout(detail="gone")
    record = recorded(ReferenceScore(reference=0, s_r=0.5), outcome=gone)
    assert replay(record, RewardsConfig()) == gone
    assert replay(record, RewardsConfig(consistency=ConsistencyConfig(mode="reranker"))) == Scored(value=0.5)


def test_replay_converts_between_fallback_and_failure():
    gone = JudgeTimeout(detail="gone")
    scores = (ReferenceScore(reference=0, s_r=0.2, s_j=0.1), ReferenceScore(reference=1, s_r=0.5))
    stand_in = RewardsConfig(consistency=ConsistencyConfig(fallback="reranker"))
    failed = recorded(*scores, outcome=gone)
    assert replay(failed, RewardsConfig()) == gone
    assert replay(failed, stand_in) == Scored(value=0.5)
    flagged = replace(recorded(*scores, outcome=Scored(value=0.5)), fallback="reranker")
    assert replay(flagged, stand_in) == Scored(value=0.5)
    assert isinstance(replay(flagged, RewardsConfig()), JudgeUnavailable)


def test_outcomes_without_scorers_keep_their_value_under_new_weights():
    doubled = RewardsConfig(consistency=ConsistencyConfig(weight=2.0), format=FormatConfig(weight=3.0))
    assert replay(recorded(outcome=Scored(value=1.0)), doubled) == Scored(value=2.0)
    assert replay(recorded(outcome=MalformedResponse(detail="x")), doubled) == Scored(value=0.0)
    assert replay(recorded(outcome=Scored(value=1.0), name="format"), doubled) == Scored(value=3.0)


graded = st.integers(-1, 6).map(lambda x: json.dumps({"reason": "", "score": x}))
risks = st.sampled_from([[], ["role"], ["mood"]]).map(
    lambda found: json.dumps({"reason": "", "types": found, "risk": "yes" if found else "no"})
)
labelled = st.sampled_from(["none", "factual", "?"]).map(lambda x: json.dumps({"reason": "", "judgment": x}))
checked = st.tuples(st.booleans(), st.booleans()).map(
    lambda ok: json.dumps(
        {"reason": "", "checks": {"I1": "met" if ok[0] else "unmet", "I2": "clear" if ok[1] else "violated"}}
    )
)


@st.composite
def judged_configs(draw):
    names = ("dialogue", "policy", "tool", "rubric", "risk", "hallucination")
    sections = {name: {"weight": draw(weights), "max_reasks": draw(st.integers(0, 1))} for name in names}
    for name in ("dialogue", "policy", "tool", "rubric"):
        sections[name]["scale"] = draw(st.sampled_from(["span", "share"]))
    sections["rubric"]["reading"] = draw(st.sampled_from(["holistic", "items"]))
    sections["risk"]["scale"] = draw(st.sampled_from(["reward", "penalty"]))
    return RewardsConfig.model_validate({"consistency": {"weight": 0.0}, "veto_first": draw(st.booleans()), **sections})


@given(st.data(), judged_configs(), st.sampled_from(TEXTS), st.booleans())
def test_replay_reproduces_judged_components_exactly(data, rewards, text, with_rubric):
    def answer(question):
        kind = question.prompt.partition(".")[0]
        texts = {"risk": risks, "hallucination": labelled, "rubric_items": checked}.get(kind, graded)
        return data.draw(st.one_of(texts.map(lambda said: Answer(text=said)), failures))

    rubric = [{"title": "a", "description": "", "weight": 3}, {"title": "b", "description": "", "weight": -2}]
    point = replace(sample("a reference"), privileged={"rubric": rubric} if with_rubric else {})

    async def scored():
        judge = ScriptedPool("judge", answer)
        router = RewardRouter(rewards, {"judge": judge}, count_tokens=lambda t: len(t.split()), deadline_s=30.0)
        return await router.score(point, rollout(text))

    record = record_from_json(record_to_json(asyncio.run(scored())))
    assert replay(record, rewards) == record.total
    if not with_rubric and record.action is not None and rewards.rubric.weight:
        assert isinstance(next(c.outcome for c in record.components if c.name == "rubric"), Absent)


def test_a_response_that_was_never_scored_keeps_its_failure():
    record = replace(recorded(outcome=Absent(detail="")), components=(), total=JudgeTimeout(detail="router deadline"))
    assert replay(record, RewardsConfig()) == record.total
    turn = with_turn_reward(record, Component(name=TURN_REWARD, outcome=Scored(value=0.5), weight=1.0))
    assert replay(turn, RewardsConfig()) == turn.total == record.total


def test_stale_response_stays_stale():
    record = replace(recorded(ReferenceScore(reference=0, s_r=0.7), outcome=Scored(value=0.7)), total=Stale(detail=""))
    assert replay(record, RewardsConfig()) == record.total


def test_unknown_component_without_weight_is_ignored():
    record = recorded(outcome=Scored(value=1.0))
    own = Component(name="exact_act", outcome=Scored(value=0.0), weight=0.0)
    assert replay(replace(record, components=(*record.components, own)), RewardsConfig()) == record.total


def test_an_unknown_component_is_named():
    with pytest.raises(DataError, match="charm"):
        replay(recorded(outcome=Scored(value=1.0), name="charm"), RewardsConfig())
