"""The pause for unavailable scorers: rescored responses, waiting times and its end."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import rollout, sample

from hamr.cascade.rescoring import settle
from hamr.config.faults import UnscoredConfig
from hamr.errors import TooManyUnscored
from hamr.rewards.mix import with_turn_reward
from hamr.types import (
    TURN_REWARD,
    Component,
    JudgeTimeout,
    JudgeUnavailable,
    MalformedResponse,
    RewardRecord,
    RolloutGroup,
    Scored,
)

AWAY = JudgeUnavailable(detail="no replica was running")


def record(key, total):
    return RewardRecord(key=key, total=total, components=(), action=None, band="none")


def group(*totals):
    rollouts = tuple(rollout(f"text {i}", i) for i in range(len(totals)))
    records = tuple(record(r.key, total) for r, total in zip(rollouts, totals, strict=True))
    return RolloutGroup(sample=sample("a"), rollouts=rollouts, records=records)


class Rewarder:
    """Fails `failures` times, then scores; keeps what it was asked."""

    def __init__(self, failures=0):
        self.failures, self.asked = failures, []

    async def score(self, sample, rollout):
        self.asked.append(rollout)
        self.failures -= 1
        total = AWAY if self.failures >= 0 else Scored(value=0.25)
        return record(rollout.key, total)


async def settled(groups, rewarder, **config):
    """Return the result, the waits and the notes, on a clock that only sleeping advances."""
    waits, notes = [], []

    async def sleep(seconds):
        waits.append(seconds)

    result = await settle(
        groups, rewarder, UnscoredConfig(**config), step=3, note=notes.append, clock=lambda: sum(waits), sleep=sleep
    )
    return result, waits, notes


async def test_group_that_replaces_another_counts_with_the_rest_of_its_step():
    before, failed = [group(*(Scored(value=1.0),) * 4)], [group(AWAY, AWAY)]
    rewarder = Rewarder()
    result = await settle(failed, rewarder, UnscoredConfig(), step=3, note=print, before=before)
    assert (result.groups, rewarder.asked) == (failed, [])
    before, notes = [group(AWAY, Scored(value=1.0))], []
    config = UnscoredConfig(first_s=0.001, longest_s=0.001)
    result = await settle(failed, rewarder, config, step=3, note=notes.append, before=before)
    assert "3 of 4 responses have no reward" in notes[0] and result.rescored == 2 and len(result.groups) == 1


async def test_failures_within_the_limit_are_not_rescored():
    groups = [group(AWAY, Scored(value=0.0)), group(AWAY, MalformedResponse(detail="x"))]
    result, waits, notes = await settled(groups, Rewarder())
    assert (result.groups, result.rescored, result.metrics, waits, notes) == (groups, 0, {}, [], [])
    result, waits, _ = await settled([group(AWAY, AWAY)], Rewarder(), max_frac=None)
    assert (result.rescored, waits) == (0, [])
    assert (await settled([], Rewarder()))[0].groups == []


async def test_only_failed_responses_are_rescored():
    kept = Scored(value=1.0)
    groups = [group(AWAY, kept, AWAY), group(kept, AWAY)]
    rewarder = Rewarder()
    result, waits, notes = await settled(groups, rewarder)
    assert [(r.key.sample, r.siblings, r.text) for r in rewarder.asked] == [
        (0, 2, "text 0"), (2, 2, "text 2"), (1, 1, "text 1")
    ]  # fmt: skip
    new = Scored(value=0.25)
    assert [g.rewards for g in result.groups] == [(0.25, 1.0, 0.25), (1.0, 0.25)]
    assert [r.total for r in result.groups[0].records] == [new, kept, new]
    assert [g.rollouts for g in result.groups] == [g.rollouts for g in groups]
    assert [[r.key for r in g.records] for g in result.groups] == [[r.key for r in g.records] for g in groups]
    assert (waits, result.metrics) == ([10.0], {"rollout/rescored": 3.0, "timing/step/paused": 10.0})
    assert notes == [
        "step 3: 3 of 5 responses have no reward (judge_unavailable 3; e.g. no replica was running); waiting for the "
        "scorers: retry in 10 s, the run stops in 900 s",
        "step 3: rescored after 10 s, continuing",
    ]


async def test_turns_that_were_never_scored_have_no_reward_of_zero():
    turn = group(AWAY)
    point = Component(name=TURN_REWARD, outcome=Scored(value=0.5), weight=1.0)
    turns = replace(turn, points=(sample("a"),), records=tuple(with_turn_reward(r, point) for r in turn.records))
    assert turns.records[0].total == AWAY
    with pytest.raises(TooManyUnscored):
        await settled([turns], Rewarder(failures=100))
    result, _, _ = await settled([turns], Rewarder(failures=1))
    assert [r.total for r in result.groups[0].records] == [Scored(value=0.5)]


async def test_waits_grow_until_enough_responses_are_scored():
    rewarder = Rewarder(failures=4 + 4 + 4 + 2)
    result, waits, _ = await settled([group(*[AWAY] * 4)], rewarder, first_s=10.0, longest_s=30.0)
    assert waits == [10.0, 20.0, 30.0, 30.0]
    assert [r.total.ok for r in result.groups[0].records] == [False, False, True, True]
    assert len(rewarder.asked) == 16


async def test_exhausted_wait_raises_one_line_with_the_missing_rewards():
    groups = [group(AWAY, AWAY, JudgeTimeout(detail="slow"), Scored(value=1.0))]
    rewarder = Rewarder(failures=1000)
    with pytest.raises(TooManyUnscored) as stopped:
        await settled(groups, rewarder, wait_s=25.0)
    assert str(stopped.value) == (
        "step 3: 3 of 4 responses have no reward (judge_unavailable 3; e.g. no replica was running) after 25 s of "
        "retries; limit experiment.unscored.max_frac=0.5; nothing of this step was trained on or recorded. Restore "
        "the pools, then resume the run"
    )
    assert stopped.value.exit_code == 1
    assert len(rewarder.asked) == 6, "after 10 s and, the rest, after 15 s more"


async def test_earlier_pauses_of_the_step_count_for_the_wait():
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    config = UnscoredConfig(wait_s=100.0)
    with pytest.raises(TooManyUnscored, match="after 100 s of retries"):
        await settle(
            [group(AWAY)],
            Rewarder(1000),
            config,
            step=3,
            note=print,
            paused=75.0,
            clock=lambda: sum(waits),
            sleep=sleep,
        )
    assert waits == [10.0, 15.0]


async def test_zero_wait_raises_immediately():
    rewarder = Rewarder()
    with pytest.raises(TooManyUnscored):
        await settled([group(AWAY)], rewarder, wait_s=0.0)
    assert rewarder.asked == []


@given(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=6), max_size=5),
    st.integers(0, 40),
    st.floats(0, 1),
)
async def test_accepted_batch_never_exceeds_the_failure_limit(scored, failures, max_frac):
    groups = [group(*(Scored(value=1.0) if ok else AWAY for ok in oks)) for oks in scored]
    count = sum(len(g.records) for g in groups)
    try:
        result, waits, _ = await settled(groups, Rewarder(failures), max_frac=max_frac)
    except TooManyUnscored:
        return
    failed = sum(not r.total.ok for g in result.groups for r in g.records)
    assert failed <= max_frac * count
    assert sum(waits) <= 900.0
    keys = [r.key for g in result.groups for r in g.records]
    assert keys == [r.key for g in groups for r in g.records]
