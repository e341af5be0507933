"""The weighted mix: from the components of a reward to its total."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hamr.types import Component, Failure, Scored, Total


def mix(components: Sequence[Component]) -> Total:
    """Scored(sum of weight x value), or the first failure among the components with a non-zero weight.

    A failure is never a number: not 0, and not left out of the sum either. A malformed response is the policy's
    own doing and adds its genuine 0. What is absent is left out. No component, or none with a weight: 0.
    """
    weighted = [component for component in components if component.weight]
    for component in weighted:
        if isinstance(component.outcome, Failure):
            return component.outcome
    return Scored(value=math.fsum(c.contribution for c in weighted if c.contribution is not None))
