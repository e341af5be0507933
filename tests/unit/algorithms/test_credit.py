"""Advantages of the turns of dialogues."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.algorithms.advantages import group_advantages
from hamr.algorithms.credit import Credit, EpisodeRewards, comparisons, episode_rewards, turn_advantages
from hamr.algorithms.reinforce_pp import reward_itself
from hamr.types import TURN_REWARD, Component, FunctionTimeout, RewardRecord, SampleKey, Scored

CREDITS: tuple[Credit, ...] = ("outcome", "turn", "turn_normalised")
rewards = st.none() | st.floats(-10, 10)


def centred(values):
    return group_advantages(values, normalize_std=False)


@pytest.mark.parametrize("credit", CREDITS)
@given(st.lists(rewards, min_size=1, max_size=8))
def test_single_decisions_have_group_relative_advantages_with_every_credit(credit, values):
    group = [EpisodeRewards(turns=(value,)) for value in values]
    assert turn_advantages(group, credit, group_advantages) == group_advantages(values)


GROUP = [
    EpisodeRewards(turns=(1.0, 0.0, 1.0), outcome=1.0),
    EpisodeRewards(turns=(0.0, 0.5), outcome=0.0),
]


def test_outcome_gives_every_turn_the_advantage_of_its_dialogue():
    assert turn_advantages(GROUP, "outcome", centred) == [0.5, 0.5, 0.5, -0.5, -0.5]


def test_turn_sums_a_reward_and_what_follows_over_all_turns():
    assert comparisons(GROUP, "turn") == [[3.0, 2.0, 2.0, 0.5, 0.5]]
    assert turn_advantages(GROUP, "turn", centred) == pytest.approx([1.4, 0.4, 0.4, -1.1, -1.1])


def test_turn_normalised_compares_equal_turns_and_adds_the_outcome():
    # Turn 0: 1 against 0. Turn 1: 0 against 0.5. Turn 2: one dialogue alone has it.
    assert turn_advantages(GROUP, "turn_normalised", centred) == [1.0, 0.25, 0.5, -1.0, -0.25]


@pytest.mark.parametrize("credit", CREDITS)
def test_failed_dialogue_is_excluded_from_the_baselines(credit):
    failed = EpisodeRewards(turns=(None, None))
    assert turn_advantages([*GROUP, failed], credit, centred) == [*turn_advantages(GROUP, credit, centred), 0.0, 0.0]


def test_failed_turn_leaves_the_turns_before_it_without_a_sum():
    failed = EpisodeRewards(turns=(1.0, None, 0.5), outcome=1.0)
    assert comparisons([failed], "turn") == [[None, None, 1.5]]


def test_turn_without_a_value_has_the_mean_reward_in_reinforce_pp():
    group = [EpisodeRewards(turns=(1.0,), outcome=3.0), EpisodeRewards(turns=(1.0,)), EpisodeRewards(turns=(None,))]
    assert turn_advantages(group, "outcome", reward_itself) == [3.0, 3.0, 3.0]
    assert turn_advantages(group, "turn_normalised", reward_itself) == [4.0, 4.0, 4.0]


@pytest.mark.parametrize("estimator", [reward_itself, group_advantages, centred])
def test_unrewarded_turn_has_the_mean_advantage_of_the_rewarded_ones(estimator):
    """So that it is neither raised nor lowered by the other turns of its index."""
    group = [
        EpisodeRewards(turns=(1.0, 0.0), unrewarded=frozenset({1})),
        EpisodeRewards(turns=(1.0, 1.0)),
        EpisodeRewards(turns=(0.0, 1.0)),
    ]
    found = turn_advantages(group, "turn_normalised", estimator)
    assert found.pop(1) == pytest.approx(sum(found) / len(found), abs=1e-12)


def test_turn_index_without_any_reward_has_the_mean_advantage_in_reinforce_pp():
    group = [EpisodeRewards(turns=(0.0, reward), unrewarded=frozenset({0})) for reward in (1.0, 0.5)]
    assert turn_advantages(group, "turn_normalised", reward_itself) == [0.75, 1.0, 0.75, 0.5]
    assert turn_advantages(group, "turn_normalised", centred) == [0.0, 0.25, 0.0, -0.25]


def test_failed_dialogue_does_not_make_the_turns_of_others_unrewarded():
    """Its turns have a failure. Those of dialogues that are rewarded as a whole have no reward, but penalties count."""
    key = SampleKey(run="r", step=0, prompt="p", sample=0)
    late = Component(name=TURN_REWARD, outcome=FunctionTimeout(detail="late"), weight=1.0)
    bare = [RewardRecord(key=replace(key, sample=i), total=Scored(value=0.0)) for i in range(3)]
    failed = RewardRecord(key=replace(key, sample=3), total=late.outcome, components=(late,))
    episodes = episode_rewards([*bare, failed], [-1.0, 0.0, 0.0, None])
    assert [e.own(0) for e in episodes] == [-1.0, 0.0, 0.0, None]
