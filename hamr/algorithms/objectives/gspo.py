"""GSPO: the probability ratio of the whole response, and clipping of whole responses."""

from __future__ import annotations

import torch
from torch import Tensor

from hamr.algorithms.terms import TokenTerms


def gspo(tokens: TokenTerms, *, clip_low: float, clip_high: float) -> Tensor:
    """Return -w min(s A, clip(s, 1 - clip_low, 1 + clip_high) A) (Group Sequence Policy Optimization, Eq. 5 and 7).

    Per token, in the shape of `tokens.logprobs`. s = exp(mean of log r over the response), the length-normalised ratio.
    It is much closer to 1 than the ratio of a token, and so is its range: the paper has 3e-4 and 4e-4. As in the
    paper's GSPO-token, each token has the value s and the gradient s times that of its own log-probability; with one
    advantage per response, the sum is that of s.
    """
    log_ratio = (tokens.logprobs - tokens.old_logprobs).detach()
    ratio = torch.exp(tokens.response_mean(log_ratio) + tokens.logprobs - tokens.logprobs.detach())
    gain, bounded = ratio * tokens.advantages, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * tokens.advantages
    return -tokens.importance_weights * torch.minimum(gain, bounded)
