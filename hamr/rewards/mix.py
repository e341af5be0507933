"""Weighted sum of reward components."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hamr.types import Component, Failure, Scored, Total


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
