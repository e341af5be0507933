"""CISPO: clip the weight of the gradient, so that no token loses its gradient."""

from __future__ import annotations

from torch import Tensor

from hamr.algorithms.terms import TokenTerms


def cispo(tokens: TokenTerms, *, clip_low: float, clip_high: float) -> Tensor:
    """Return -w sg(clip(r, 1 - clip_low, 1 + clip_high)) A log p (MiniMax-M1, Eq. 4 and 5; sg: without gradient).

    Per token, in the shape of `tokens.logprobs`. The paper bounds the ratio from above only: clip_low = 1.
    """
    weight = tokens.ratio.clamp(1.0 - clip_low, 1.0 + clip_high).detach()
    return -tokens.importance_weights * weight * tokens.advantages * tokens.logprobs
