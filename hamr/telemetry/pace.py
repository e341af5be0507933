"""How much longer a stage takes."""

from __future__ import annotations

from collections.abc import Sequence

PACE_STEPS = 5
"""Steps that the pace is taken of: the last ones, since a run may be resized."""


def left_s(seconds: Sequence[float], step: int, total: int) -> float | None:
    """Seconds until step `total`, at the pace of the last steps, which took `seconds`; None before there is a pace."""
    if not seconds or not total:
        return None
    last = seconds[-PACE_STEPS:]
    return sum(last) / len(last) * max(0, total - step)
