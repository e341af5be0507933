"""Group-relative advantages: of the total reward (GRPO, DeepSeekMath section 4.1; DAPO keeps them), or decoupled by
component (GDPO)."""

from __future__ import annotations

import math
from collections.abc import Sequence

Weighted = tuple[float, Sequence[float | None]]
"""Weight of a reward component, and its value for each response of a group. None: no value."""


def group_advantages(
    rewards: Sequence[float | None], *, normalize_std: bool = True, std_floor: float = 0.0, eps: float = 1e-6
) -> list[float]:
    """Return the group-relative advantage of each response to one prompt.

    A_i = (r_i - mean r) / (std r + eps), or r_i - mean r without `normalize_std` (which keeps the scale of hard and
    easy prompts). std is the population standard deviation, because the group is complete. `std_floor` is its minimum,
    so that one outlier among near-equal rewards gets no full-sized advantage.

    None marks a response whose scoring failed: it is excluded from mean and std and has advantage 0. With fewer than
    two scored responses, or equal rewards, all advantages are exactly 0. Raises ValueError for a reward that is not
    finite.

    >>> group_advantages([1.0, 0.0, None, 0.5], normalize_std=False)
    [0.5, -0.5, 0.0, 0.0]
    """
    scored = [r for r in rewards if r is not None]
    if not all(math.isfinite(r) for r in scored):
        raise ValueError(f"rewards {list(rewards)}: a reward must be a finite number, or None if scoring failed")
    if len(scored) < 2 or max(scored) == min(scored):
        return [0.0] * len(rewards)
    mean = math.fsum(scored) / len(scored)
    scale = 1.0
    if normalize_std:
        deviation = math.sqrt(math.fsum((r - mean) ** 2 for r in scored) / len(scored))
        scale = max(deviation, std_floor) + eps
    return [0.0 if r is None else (r - mean) / scale for r in rewards]


def decoupled_advantages(components: Sequence[Weighted], *, std_floor: float = 0.0) -> list[float]:
    """Return the sum of each component's weight times its group-relative advantage (GDPO, arXiv:2601.05242, section 3).

    Each component is normalised within the group before they are summed, so that the weights alone decide how much it
    counts, whatever its scale and frequency. A component in which all responses are equal adds nothing. A response
    without a value for a component is excluded from that component's mean and std and gets 0 for it.

    >>> [round(a, 3) for a in decoupled_advantages([(1.0, [1.0, 0.0, 0.0]), (1.0, [0.0, 0.0, -9.0])])]
    [2.121, 0.0, -2.121]
    """
    parts = [
        [weight * a for a in group_advantages(values, std_floor=std_floor)] for weight, values in components if weight
    ]
    return [math.fsum(own) for own in zip(*parts, strict=True)]


def unit_scale(advantages: Sequence[float], *, eps: float = 1e-8) -> float:
    """Return the factor that gives the advantages of a whole batch a standard deviation of 1 (GDPO, Eq. 6).

    Their size then does not grow with the number of components. Their mean is 0, because that of each group is.
    """
    variance = math.fsum(a * a for a in advantages) / max(1, len(advantages))
    return 1.0 / math.sqrt(variance + eps)
