"""DAPO's dynamic sampling (section 3.2): selection of the groups with a training signal."""

from __future__ import annotations

from collections.abc import Sequence


def carries_signal(rewards: Sequence[float | None], tolerance: float = 1e-6) -> bool:
    """Return True if the rewards of the group differ by more than `tolerance`. Otherwise every advantage is 0 or noise.

    None marks a failed scoring and is ignored. Fewer than two scored responses carry no signal.

    >>> carries_signal([1.0, 1.0]), carries_signal([1.0, 0.0]), carries_signal([1.0, None])
    (False, True, False)
    """
    scored = [r for r in rewards if r is not None]
    return len(scored) >= 2 and max(scored) - min(scored) > tolerance
