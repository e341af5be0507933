"""REINFORCE++: advantages that are normalised over the batch instead of the group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from hamr.types import TrainGroup


def reward_itself(rewards: Sequence[float | None]) -> list[float]:
    """Return the rewards, and their mean for None. The baseline is that of the batch (`whiten`), in which a failure
    must not count as a reward of 0."""
    scored = [r for r in rewards if r is not None]
    mean = math.fsum(scored) / max(1, len(scored))
    return [mean if r is None else r for r in rewards]


WHITENED = ("reinforce_pp", "reinforce_pp_baseline")
"""Estimators (`algorithm.advantage`) that need `whiten`: with the rewards, and with the mean of the group removed."""


def whiten(groups: Sequence[TrainGroup], eps: float = 1e-8) -> list[TrainGroup]:
    """Return the groups with advantages of mean 0 and variance 1 over all tokens of the batch (REINFORCE++)."""
    flat = [(s.advantage, len(s.token_ids)) for g in groups for s in g.sequences]
    count = sum(n for _, n in flat)
    mean = math.fsum(a * n for a, n in flat) / max(1, count)
    variance = math.fsum((a - mean) ** 2 * n for a, n in flat) / max(1, count - 1)
    scale = 1.0 / math.sqrt(variance + eps)
    return [
        replace(g, sequences=tuple(replace(s, advantage=(s.advantage - mean) * scale) for s in g.sequences))
        for g in groups
    ]
