"""PPO's clipped objective with DAPO's asymmetric range, and dual clip."""

from __future__ import annotations

import torch
from torch import Tensor

from hamr.algorithms.terms import TokenTerms


def clip(tokens: TokenTerms, *, clip_low: float, clip_high: float, dual_clip: float | None = None) -> Tensor:
    """Return -w min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) per token (DAPO, Eq. 8). GRPO has clip_low =
    clip_high.

    In the shape of `tokens.logprobs`. With `dual_clip` c > 1 (Ye et al., "Mastering Complex Control in MOBA Games with
    Deep Reinforcement Learning"), the loss of a token with A < 0 is at most -w c A, and its gradient is 0 beyond: min
    alone does not bound r there.
    """
    ratio, advantages = tokens.ratio, tokens.advantages
    gain = torch.minimum(ratio * advantages, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantages)
    if dual_clip is not None:
        gain = torch.where(advantages < 0, torch.maximum(gain, dual_clip * advantages), gain)
    return -tokens.importance_weights * gain
