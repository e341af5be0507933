"""Learning rate as a pure function of the step."""

from __future__ import annotations

import math
from typing import Literal


def learning_rate(
    step: int,
    *,
    peak: float,
    total_steps: int,
    schedule: Literal["constant", "cosine"] = "constant",
    warmup_frac: float = 0.0,
    minimum: float = 0.0,
) -> float:
    """Return the learning rate of optimiser step `step`, counted from 0.

    The first w = ceil(warmup_frac * total_steps) steps increase linearly, (step + 1) / (w + 1) of the peak, so no step
    has rate 0. Then `constant` stays at the peak, and `cosine` decreases to `minimum`, which the last step reaches.
    Later steps keep that rate. Raises ValueError if `minimum` is above the peak in a cosine schedule.

    >>> [round(learning_rate(s, peak=1.0, total_steps=5, schedule="cosine"), 3) for s in range(5)]
    [1.0, 0.854, 0.5, 0.146, 0.0]
    """
    if schedule == "cosine" and minimum > peak:
        raise ValueError(f"min_learning_rate={minimum} is above learning_rate={peak}; lower the minimum")
    warmup = math.ceil(warmup_frac * total_steps - 1e-9)  # 0.07 * 100 is above 7 in floating point
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if schedule == "constant":
        return peak
    span = max(total_steps - 1 - warmup, 1)
    progress = min((step - warmup) / span, 1.0)
    return minimum + (peak - minimum) * 0.5 * (1.0 + math.cos(math.pi * progress))
