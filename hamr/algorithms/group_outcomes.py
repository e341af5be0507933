"""Outcomes of groups: all wrong, all right or mixed. Only mixed groups give a group-relative advantage."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from statistics import mean
from typing import Literal

from hamr.types import TURN_REWARD, Failure, RewardRecord, RolloutGroup, Stale

GroupOutcome = Literal["all_wrong", "all_right", "mixed"]
OUTCOMES: tuple[GroupOutcome, ...] = ("all_wrong", "all_right", "mixed")
RIGHT_ABOVE = 0.5


def is_right(record: RewardRecord) -> bool | None:
    """Return True if the consistency reward of a response (or its total, if it has none) is above 0.5. None if it has
    no total, like the turns of failed dialogues; a stale response had one. A turn without rewards of its own that ends
    a dialogue counts by the reward of the dialogue."""
    if isinstance(record.total, Failure) and not isinstance(record.total, Stale):
        return None
    component = next((c for c in record.components if c.name == "consistency"), None)
    if component is not None:
        value = component.value
    elif record.episode is not None and not record.components:
        value = record.episode.reward
    else:
        value = getattr(record.total, "value", None)
    return None if value is None else value > RIGHT_ABOVE


def outcome(group: RolloutGroup) -> GroupOutcome | None:
    """Return the outcome of a group, None if no response has a reward."""
    share = right_share(group)
    if share is None:
        return None
    return "all_right" if share == 1.0 else "mixed" if share else "all_wrong"


def right_share(group: RolloutGroup) -> float | None:
    """Return the share of right ones among the responses with a reward, None if there are none.

    If the turns of dialogues have no rewards of their own, the share is that of right dialogues. If only some have,
    the others do not count.
    """
    ends = [record for record in group.records if record.episode is not None]
    judged = group.records if any(map(has_reward, group.records)) else ends or group.records
    if ends:
        judged = [record for record in judged if record.components or record.episode is not None]
    right = [r for r in map(is_right, judged) if r is not None]
    return sum(right) / len(right) if right else None


def has_failures(group: RolloutGroup) -> bool:
    """Return whether a response has no reward yet; it may get one when it is scored again."""
    return any(isinstance(record.total, Failure) for record in group.records)


def has_reward(record: RewardRecord) -> bool:
    """Return whether the response itself is rewarded, and not only the dialogue that it is a turn of. Every turn of a
    failed dialogue has a failure of `TURN_REWARD`, which does not count."""
    return any(c.weight and not (c.name == TURN_REWARD and isinstance(c.outcome, Failure)) for c in record.components)


def rewarded_turns(records: Iterable[RewardRecord]) -> list[RewardRecord]:
    """Return the records without a failure. Turns without a reward of their own are left out where others have one."""
    scored = [record for record in records if not isinstance(record.total, Failure)]
    rewarded = any(map(has_reward, scored))
    return [record for record in scored if record.components or not rewarded]


def group_metrics(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """Return `groups/*`: the share of each outcome, over all scored groups and per act (`meta.act`) if samples name
    one. The turns of dialogues have different acts and are not divided."""
    counts: Counter[str] = Counter()
    by_act: dict[str, Counter[str]] = {}
    for group in groups:
        found = outcome(group)
        if found is None:
            continue
        counts[found] += 1
        if not group.points and (act := group.sample.meta.get("act")) is not None:
            by_act.setdefault(metric_word(str(act)), Counter())[found] += 1
    if not counts:
        return {}
    metrics = {f"groups/{name}_frac": counts[name] / counts.total() for name in OUTCOMES}
    for act, own in sorted(by_act.items()):
        metrics |= {f"groups/{name}_by_act/{act}": own[name] / own.total() for name in OUTCOMES}
    return metrics


def metric_word(act: str) -> str:
    """Return the name of an act as one word of a metric name.

    >>> metric_word("ask EmotionTag")
    'ask_EmotionTag'
    """
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", act)


def redrawn_length(groups: Sequence[RolloutGroup], redrawn: Collection[str]) -> dict[str, float]:
    """Return `rollout/redrawn_length`: the mean tokens of responses to the prompts `redrawn`, over those of the others.

    The prompts are those whose groups the step before aborted. Above 1, aborting delays prompts with long responses. 1
    does not mean that training has responses of all lengths: the responses of aborted groups, and prompts that are
    aborted again, are in neither mean.
    """
    lengths: dict[bool, list[int]] = {True: [], False: []}
    for rollout in (r for group in groups for r in group.rollouts):
        lengths[rollout.key.prompt in redrawn].append(len(rollout.token_ids))
    if not all(map(sum, lengths.values())):
        return {}
    return {"rollout/redrawn_length": mean(lengths[True]) / mean(lengths[False])}
