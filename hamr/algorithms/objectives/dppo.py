"""DPPO: a trust region in probability instead of the probability ratio."""

from __future__ import annotations

import torch
from torch import Tensor

from hamr.algorithms.terms import TokenTerms

LARGEST_RATIO = 20.0
"""Cap of the ratio (section 5.4 of the paper)."""


def dppo(tokens: TokenTerms, *, clip_low: float, clip_high: float) -> Tensor:
    """Return -m sg(min(p / q, 20)) A log p (Rethinking the Trust Region in LLM Reinforcement Learning, Binary-TV).

    Per token, in the shape of `tokens.logprobs`, with the engine's probability q. The mask m removes a token with A > 0
    whose probability is above q by more than `clip_high`, and one with A <= 0 whose probability is below q by more than
    `clip_low`: |p - q| is the total variation of "this token or another". A rare token may thus change by a large
    factor, a likely one only a little.

    p / q corrects for the engine, so the importance weight is not applied. A token that it masks (weight 0) is removed.
    """
    moved = tokens.logprobs.exp() - tokens.behaviour_logprobs.exp()
    inside = torch.where(tokens.advantages > 0, moved <= clip_high, moved >= -clip_low)
    ratio = torch.exp(tokens.logprobs - tokens.behaviour_logprobs).clamp(max=LARGEST_RATIO)
    weight = (ratio * inside * (tokens.importance_weights > 0)).detach()
    return -weight * tokens.advantages * tokens.logprobs
