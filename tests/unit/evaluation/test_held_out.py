"""Held-out figures from records whose answer is known."""

from __future__ import annotations

from hamr.evaluation.held_out import decision_matches, summarise
from hamr.types import (
    Action,
    Band,
    Component,
    JudgeTimeout,
    MalformedResponse,
    Outcome,
    Reference,
    Reply,
    RewardRecord,
    SampleKey,
    Scored,
    ServiceSample,
    ToolCall,
)

ASK, CALL = Reply(content="Data or voice?"), ToolCall(name="change_order", parameters={"operation": "change"})


def sample(i: int, gold: Action, act: str) -> ServiceSample:
    return ServiceSample(
        id=str(i), ticket={}, policy="", tools=(), history=(), references=(Reference(action=gold),), meta={"act": act}
    )


def record(i: int, action: Action | None, outcome: Outcome, band: Band) -> RewardRecord:
    return RewardRecord(
        key=SampleKey(run="r", step=0, prompt=str(i), sample=0),
        total=outcome,
        components=(Component(name="consistency", outcome=outcome, weight=1.0),),
        action=action,
        band=band,
    )


def test_figures() -> None:
    samples = [sample(0, ASK, "ask"), sample(1, CALL, "call"), sample(2, CALL, "call"), sample(3, ASK, "ask")]
    records = [
        record(0, Reply(content="Which one?"), Scored(value=0.8), "inside"),
        record(1, CALL, Scored(value=1.0), "tool_match"),
        record(2, ToolCall(name="change_order"), Scored(value=0.0), "tool_match"),
        record(3, None, MalformedResponse(detail="empty"), "none"),
    ]
    result = summarise(samples, records)
    assert result.action_accuracy == 0.75 and result.tool_exact_match == 0.5 and result.format_error_rate == 0.25
    assert result.reward["total"] == (0.8 + 1.0) / 4 and result.by_act == {"ask": 0.5, "call": 1.0}
    assert result.failed_frac == 0.0


def test_a_failed_score_is_left_out_of_the_means() -> None:
    result = summarise([sample(0, ASK, "ask")], [record(0, ASK, JudgeTimeout(), "below")])
    assert result.failed_frac == 1.0 and result.reward == {} and result.tool_exact_match is None


def test_another_tool_is_another_decision() -> None:
    references = (Reference(action=CALL),)
    assert decision_matches(ToolCall(name="change_order"), references)
    assert not decision_matches(ToolCall(name="transfer_human"), references)
    assert not decision_matches(ASK, references) and not decision_matches(None, references)
