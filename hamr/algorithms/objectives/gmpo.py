"""GMPO: the geometric mean of the token ratios, each clipped before."""

from __future__ import annotations

import torch
from torch import Tensor

from hamr.algorithms.terms import TokenTerms


def gmpo(tokens: TokenTerms, *, clip_low: float, clip_high: float) -> Tensor:
    """Return -w A exp(mean of the clipped log r over the response) (Geometric-Mean Policy Optimization).

    Per token, in the shape of `tokens.logprobs`. log r is clipped to [-clip_low, clip_high], on the side that the sign
    of A forbids, as with min(r A, clip(r) A). The paper has 0.4 on both sides. As with `gspo`, each token has the value
    of its response and the gradient of its own clipped log r, so that w weights or masks the token itself; with equal w
    the sum is the paper's.
    """
    log_ratio = tokens.logprobs - tokens.old_logprobs
    bounded = torch.where(tokens.advantages > 0, log_ratio.clamp(max=clip_high), log_ratio.clamp(min=-clip_low))
    mean = torch.exp(tokens.response_mean(bounded.detach()) + bounded - bounded.detach())
    return -tokens.importance_weights * tokens.advantages * mean
