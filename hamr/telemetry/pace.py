"""Estimate of a stage's remaining time."""

from __future__ import annotations

from collections.abc import Sequence

PACE_STEPS = 5
"""Number of last steps that determine the pace. Earlier ones are ignored, since a run may be resized."""


def left_s(seconds: Sequence[float], step: int, total: int) -> float | None:
    """Return the seconds until step `total`, at the pace of the last steps' `seconds`; None without a step."""
    if not seconds or not total:
        return None
    last = seconds[-PACE_STEPS:]
    return sum(last) / len(last) * max(0, total - step)
