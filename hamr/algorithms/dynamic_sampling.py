"""DAPO's dynamic sampling (section 3.2): which groups are worth an optimiser step."""

from __future__ import annotations

from collections.abc import Sequence


def carries_signal(rewards: Sequence[float | None], tolerance: float = 1e-6) -> bool:
    """Whether the group's rewards differ by more than `tolerance`; if not, every advantage is 0 (or noise).

    None marks a failed scoring and is left out. Fewer than two scored responses carry no signal.

    >>> carries_signal([1.0, 1.0]), carries_signal([1.0, 0.0]), carries_signal([1.0, None])
    (False, True, False)
    """
    scored = [r for r in rewards if r is not None]
    return len(scored) >= 2 and max(scored) - min(scored) > tolerance
