"""DPPO: a trust region in probability instead of the probability ratio."""

from __future__ import annotations

import torch
from torch import Tensor

from hamr.algorithms.terms import TokenTerms

LARGEST_RATIO = 20.0
"""Cap of the ratio (section 5.4 of the paper)."""


def dppo(tokens: TokenTerms, *, clip_low: float, clip_high: float) -> Tensor:
    """Return -w m sg(min(r, 20)) A log p (Rethinking the Trust Region in LLM Reinforcement Learning, Binary-TV).

    Per token, in the shape of `tokens.logprobs`. The mask m removes a token with A > 0 whose probability has risen by
    more than `clip_high`, and one with A <= 0 whose probability has fallen by more than `clip_low`: |p - p_old| is the
    total variation of "this token or another". A rare token may thus change by a large factor, a likely one only a
    little.
    """
    moved = tokens.logprobs.exp() - tokens.old_logprobs.exp()
    inside = torch.where(tokens.advantages > 0, moved <= clip_high, moved >= -clip_low)
    weight = (tokens.ratio.clamp(max=LARGEST_RATIO) * inside).detach()
    return -tokens.importance_weights * weight * tokens.advantages * tokens.logprobs
