"""SAPO: a soft gate instead of a clip."""

from __future__ import annotations

import torch
from torch import Tensor

from hamr.algorithms.terms import TokenTerms


def sapo(tokens: TokenTerms, *, tau_positive: float, tau_negative: float) -> Tensor:
    """Return -w (4 / tau) sigmoid(tau (r - 1)) A (Soft Adaptive Policy Optimization).

    Per token, in the shape of `tokens.logprobs`. tau is `tau_positive` for A > 0, else `tau_negative`. At r = 1 the
    gradient is that of r A, and it decays with the distance, faster with a larger tau.
    """
    tau = torch.where(tokens.advantages > 0, tau_positive, tau_negative).to(tokens.logprobs.dtype)
    gate = torch.sigmoid(tau * (tokens.ratio - 1.0)) * 4.0 / tau
    return -tokens.importance_weights * gate * tokens.advantages
