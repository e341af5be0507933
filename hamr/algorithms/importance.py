"""Off-policy correction: weights of trainer over engine, per token or per response.

The inference engine and the trainer compute slightly different probabilities for the same weights (kernels, rounding),
and in an asynchronous run the engine sampled with older weights. With the log-probabilities of the trainer before the
first step on a batch as the proximal policy p, and those of the engine as the behaviour policy q, w = p / q corrects
for both, and only the ratio of the trained policy to p is clipped: decoupled PPO (Hilton et al., "Batch
size-invariance for policy optimization", 2021).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hamr.algorithms.terms import response_mean, response_sum
from hamr.types import ImportanceLevel

LARGEST_GAP = 20.0
"""Bound of a log-ratio before it is exponentiated, in nats."""
QUANTILES = {"p01": 0.01, "p50": 0.5, "p99": 0.99}


@dataclass(frozen=True, kw_only=True)
class Correction:
    """Rule that turns the ratio of trainer to engine into the weight of a token.

    The ratio is that of the token, the product over its response (`sequence`), or its geometric mean (`geometric`). A
    token with a ratio outside `mask_outside` has weight 0 (IcePop, masked importance sampling), and the others at most
    `cap` (truncated importance sampling). With neither, weights are 1. `reject_above` gives weight 0 to a response in
    which the mean of the tokens' k3 estimates of KL(engine || trainer) is larger.
    """

    level: ImportanceLevel = "token"
    cap: float | None = None
    mask_outside: tuple[float, float] | None = None
    reject_above: float | None = None


def importance_weights(proximal: Tensor, behaviour: Tensor, cap: float | None) -> Tensor:
    """Return min(p_trainer / p_engine, cap) per token, detached: truncated importance sampling.

    Log-probabilities in nats and the weights, in [0, cap], have one shape, `(tokens,)` or `(batch, tokens)`. A token
    with an engine log-probability of -inf gets the cap, and an unknown one (NaN: not sampled by an engine) gets a
    weight of 1. `cap` None: weights of 1.
    """
    gap = log_ratio(proximal, behaviour)
    own = torch.arange(gap.numel(), device=gap.device).view_as(gap)
    return corrected_weights(gap, Correction(cap=cap), torch.ones_like(gap), own, ~behaviour.isnan())


def log_ratio(proximal: Tensor, behaviour: Tensor | None) -> Tensor:
    """Return log p_trainer - log p_engine of each token, detached; 0 where the engine's is unknown.

    In nats, in [-20, 20], in the shape of `proximal`.
    """
    if behaviour is None:
        return torch.zeros_like(proximal)
    gap = (proximal - behaviour).detach()
    return torch.where(gap.isnan(), 0.0, gap).clamp(-LARGEST_GAP, LARGEST_GAP)


def corrected_weights(gap: Tensor, correction: Correction, mask: Tensor, sequences: Tensor, sampled: Tensor) -> Tensor:
    """Return the weight of each token, 0 or more, from its log-ratio in nats; 1 where no engine sampled it.

    All tensors have one shape, `(tokens,)` or `(batch, tokens)`; `mask` and `sequences` as in TokenTerms. `sampled` is
    bool or 0/1.
    """
    c, weights = correction, torch.ones_like(gap)
    if c.cap is not None or c.mask_outside is not None:
        weights = ratio_at(c.level, gap, mask, sequences)
    if c.mask_outside is not None:
        low, high = c.mask_outside
        weights = torch.where((weights >= low) & (weights <= high), weights, 0.0)
    if c.reject_above is not None:
        divergence = response_mean(engine_kl(gap), mask, sequences)
        weights = torch.where(divergence <= c.reject_above, weights, 0.0)
    if c.cap is not None:
        weights = weights.clamp(max=c.cap)
    return torch.where(sampled.bool(), weights, 1.0)


def ratio_at(level: ImportanceLevel, gap: Tensor, mask: Tensor, sequences: Tensor) -> Tensor:
    """Return the ratio of the token, or that of its response at each of its tokens, above 0, in the shape of `gap`."""
    if level == "sequence":
        gap = response_sum(gap * mask, sequences).clamp(-LARGEST_GAP, LARGEST_GAP)
    elif level == "geometric":
        gap = response_mean(gap, mask, sequences)
    return gap.exp()


def engine_kl(gap: Tensor) -> Tensor:
    """Return the k3 estimate of KL(engine || trainer) at tokens that the engine sampled: 0 or more nats each, in the
    shape of `gap`."""
    return gap.exp() - 1.0 - gap


def correction_sums(
    gap: Tensor, weights: Tensor, correction: Correction, mask: Tensor, sequences: Tensor, sampled: Tensor
) -> dict[str, Tensor]:
    """Return sums over the counted tokens for metrics: the weights, and the shares at the cap and masked.

    Over those that an engine sampled (`sampled`, 0 or 1): their number, the KL of engine to trainer in nats, and the
    quantiles of the ratios of the level, before the cap (the mean over micro-batches of each one's quantile).

    All tensors have one shape, the sums have shape `()`.
    """
    every = ratio_at(correction.level, gap, mask, sequences)
    ratios = every[sampled.bool()]
    sums = {"importance_weight": (weights * mask).sum(), "engine_kl": (engine_kl(gap) * sampled).sum()}
    sums["sampled"] = sampled.sum()
    for name, share in QUANTILES.items():
        sums[f"importance_ratio/{name}"] = sampled.sum() * (ratios.quantile(share) if ratios.numel() else 1.0)
    if correction.cap is not None:
        sums["importance_clipped"] = ((weights == correction.cap) * (every > correction.cap) * sampled).sum()
    if correction.mask_outside is not None or correction.reject_above is not None:
        sums["importance_masked"] = ((weights == 0) * mask).sum()
    return sums
