"""Weighted sum of reward components."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hamr.types import Component, Failure, RewardRecord, Scored, Total


def mix(components: Sequence[Component]) -> Total:
    """Return Scored(sum of weight x value), or the first failure among the components with a non-zero weight.

    A failure is never a number: it is neither 0 nor omitted from the sum. A malformed response is the fault of the
    policy and adds a genuine 0. Absent components are omitted. Without weighted components the result is 0.
    """
    weighted = [component for component in components if component.weight]
    for component in weighted:
        if isinstance(component.outcome, Failure):
            return component.outcome
    return Scored(value=math.fsum(c.contribution for c in weighted if c.contribution is not None))


def with_turn_reward(record: RewardRecord, reward: Component) -> RewardRecord:
    """Return the record of a turn with the reward that its dialogue gave it. A response that no scorer was asked about
    keeps its failure."""
    components = (*record.components, reward)
    unasked = isinstance(record.total, Failure) and not record.components
    return replace(record, components=components, total=record.total if unasked else mix(components))
