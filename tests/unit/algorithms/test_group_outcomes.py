"""Outcomes of groups: correctness and the fractions per act."""

from __future__ import annotations

from dataclasses import replace

from hamr.algorithms.group_outcomes import group_metrics, is_right, outcome, right_share
from hamr.types import (
    TURN_REWARD,
    Component,
    EpisodeResult,
    FunctionTimeout,
    JudgeTimeout,
    Outcome,
    Reference,
    Reply,
    RewardRecord,
    RolloutGroup,
    SampleKey,
    Scored,
    ServiceSample,
)


def record(value: float | None, side: float = 0.2) -> RewardRecord:
    scored: Outcome = JudgeTimeout(detail="away") if value is None else Scored(value=value)
    total: Outcome = scored if value is None else Scored(value=value + side)
    return RewardRecord(
        key=SampleKey(run="r", step=0, prompt="p", sample=0),
        total=total,
        components=(Component(name="consistency", outcome=scored, weight=1.0),),
        action=None,
        band="none",
    )


def group(act: str | None, *values: float | None) -> RolloutGroup:
    meta = {} if act is None else {"act": act}
    references = (Reference(action=Reply(content="ok")),)
    sample = ServiceSample(id="p", ticket={}, policy="", tools=(), history=(), references=references, meta=meta)
    return RolloutGroup(sample=sample, rollouts=(), records=tuple(map(record, values)))


def test_correctness_depends_on_consistency_and_not_on_side_rewards() -> None:
    assert is_right(record(0.45, side=0.4)) is False and is_right(record(0.6)) is True
    assert is_right(record(None)) is None
    bare = RewardRecord(key=record(0).key, total=Scored(value=0.9), components=(), action=None, band="none")
    assert is_right(bare) is True, "without a consistency reward the total counts"


def dialogue(reward: float | None, turns: int = 2) -> tuple[RewardRecord, ...]:
    """Return the turns of a dialogue with a reward as a whole only."""
    bare = RewardRecord(key=record(0).key, total=Scored(value=0.0), components=(), action=None, band="none")
    end = () if reward is None else (Component(name="reward", outcome=Scored(value=reward), weight=1.0),)
    last = replace(bare, episode=EpisodeResult(outcome="ended", components=end))
    return (*[bare] * (turns - 1), last)


def test_dialogues_count_by_their_reward_if_their_turns_have_none() -> None:
    def of(*rewards: float | None) -> RolloutGroup:
        records = tuple(turn for reward in rewards for turn in dialogue(reward))
        return replace(group("act"), records=records, points=(group("act").sample,) * len(records))

    assert outcome(of(1.0, 1.0)) == "all_right"
    assert right_share(of(1.0, 0.0, 0.0, None)) == 1 / 3
    assert outcome(of(0.0, 0.0)) == "all_wrong"
    assert outcome(of(None)) is None
    assert not [name for name in group_metrics([of(1.0)]) if "by_act" in name], "turns have different acts"


def test_failed_dialogue_does_not_change_what_the_others_are_judged_by() -> None:
    failed = Component(name=TURN_REWARD, outcome=FunctionTimeout(detail="late"), weight=1.0)
    lost = [replace(turn, components=(failed,), total=failed.outcome) for turn in dialogue(None)]
    records = (*dialogue(1.0), *dialogue(1.0), *lost)
    assert right_share(replace(group("act"), records=records, points=(group("act").sample,) * 6)) == 1.0


def test_turns_without_a_reward_do_not_count_beside_turns_with_one() -> None:
    opening, end = dialogue(1.0)
    records = (record(1.0), opening, replace(end, components=record(1.0).components, total=Scored(value=1.0)))
    assert right_share(replace(group("act"), records=records, points=(group("act").sample,) * 3)) == 1.0


def test_failures_are_excluded_from_the_group_outcome() -> None:
    assert outcome(group(None, None, 1.0)) == "all_right"
    assert outcome(group(None, 0.0, None, 1.0)) == "mixed"
    assert outcome(group(None, None)) is None


def test_turns_of_a_failed_dialogue_are_not_right() -> None:
    """They keep the rewards that they had before it failed."""
    scored = Component(name="consistency", outcome=Scored(value=1.0), weight=1.0)
    failed = replace(record(0.0), components=(scored,), total=FunctionTimeout(detail="late"))
    assert is_right(failed) is None


def test_shares_add_up_overall_and_per_act() -> None:
    groups = [group("ask", 0, 0), group("ask", 0, 1), group("order it", 1, 1), group("order it", None, None)]
    metrics = group_metrics(groups)
    assert metrics["groups/all_wrong_frac"] == metrics["groups/mixed_frac"] == metrics["groups/all_right_frac"] == 1 / 3
    assert metrics["groups/all_wrong_by_act/ask"] == metrics["groups/mixed_by_act/ask"] == 0.5
    assert metrics["groups/all_right_by_act/order_it"] == 1.0
    assert group_metrics([group("ask", None)]) == {}
    assert not any("by_act" in name for name in group_metrics([group(None, 1.0)]))
