"""Advantage estimators: functions of the rewards of a group, chosen by `algorithm.advantage`.

In all of them None marks a response whose scoring failed: it does not count and has advantage 0, before the
normalisation over the batch in REINFORCE++ that of the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hamr.algorithms.advantages import group_advantages
from hamr.algorithms.reinforce_pp import reward_itself

if TYPE_CHECKING:
    from hamr.config.algorithm import AlgorithmConfig

Rewards = Sequence[float | None]


def leave_one_out(rewards: Rewards) -> list[float]:
    """Return r_i minus the mean of the others (RLOO, Ahmadian et al. 2024).

    >>> leave_one_out([1.0, 0.0, None, 0.5])
    [0.75, -0.75, 0.0, 0.0]
    """
    count = sum(r is not None for r in rewards)
    return [a * count / max(1, count - 1) for a in group_advantages(rewards, normalize_std=False)]


def maxrl(rewards: Rewards) -> list[float]:
    """Return (r - mean) / mean (MaxRL, Tajwar et al. 2026): the gradient of log p instead of p for rewards of 0
    and 1.

    The divisor is at least 1 / N, the mean of a group with one success, which bounds it for other rewards.

    >>> maxrl([1.0, 0.0, None, 0.0, 0.0])
    [3.0, -1.0, 0.0, -1.0, -1.0]
    """
    scored = [r for r in rewards if r is not None]
    mean = math.fsum(scored) / max(1, len(scored))
    divisor = max(mean, 1.0 / max(1, len(scored)))
    return [a / divisor for a in group_advantages(rewards, normalize_std=False)]


def configured_estimator(algorithm: AlgorithmConfig) -> Callable[[Rewards], list[float]]:
    """Return the chosen estimator with the settings that it takes."""
    by_name: dict[str, Callable[[Rewards], list[float]]] = {
        "group": partial(group_advantages, normalize_std=algorithm.normalize_std, std_floor=algorithm.std_floor),
        "leave_one_out": leave_one_out,
        "maxrl": maxrl,
        "reinforce_pp": reward_itself,
        "reinforce_pp_baseline": partial(group_advantages, normalize_std=False),
    }
    return by_name[algorithm.advantage]
