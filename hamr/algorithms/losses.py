"""Losses on tensors of per-token log-probabilities, in sums that add up over micro-batches and ranks.

Every function works on any shape (flat, or [B, T]); all tensors of a call have the same one. A `mask` says which
tokens count. `normaliser` is what the sum over tokens is divided by: the number of counted tokens of the WHOLE batch
(token mean, DAPO equation 12), or per token (length of its sequence) x (number of sequences) for the sequence mean of
GRPO. As it is given from outside, the losses of micro-batches simply add up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

Estimator = Literal["k1", "k2", "k3"]


@dataclass(frozen=True, kw_only=True)
class LossTerms:
    """A loss to go backward from, and detached sums over the counted tokens to report.

    `sums` always has `tokens`; a mean is sums[name] / sums["tokens"], after adding up all micro-batches.
    """

    loss: Tensor
    sums: dict[str, Tensor] = field(default_factory=dict)


def kl_divergence(logprobs: Tensor, reference: Tensor, estimator: Estimator = "k3") -> Tensor:
    """Per-token estimate of KL(policy || reference) from a token that the policy sampled (Schulman 2020).

    With d = log p - log p_ref: k1 = d (unbiased, may be negative; as a loss its expected gradient is 0, so it is for
    watching), k2 = d^2 / 2 (biased, low variance), k3 = exp(-d) - 1 + d (unbiased, never negative).

    >>> import torch
    >>> [round(float(kl_divergence(torch.tensor(-1.0), torch.tensor(-1.5), k)), 4) for k in ("k1", "k2", "k3")]
    [0.5, 0.125, 0.1065]
    """
    d = logprobs - reference
    if estimator == "k1":
        return d
    if estimator == "k2":
        return 0.5 * d.square()
    # Beyond exp(20) the estimate is useless and its gradient would swamp the batch.
    return torch.exp((-d).clamp(max=20.0)) - 1.0 + d


def importance_weights(proximal: Tensor, behaviour: Tensor, cap: float | None) -> Tensor:
    """min(p_trainer / p_engine, cap) per token, detached: truncated importance sampling.

    The engine that sampled and the trainer that learns compute slightly different probabilities for the same weights
    (kernels, rounding, a weight update in flight); the weight corrects for it, the cap bounds its variance.
    A token whose engine log-probability is -inf gets the cap, and one where it is not known (NaN: no engine sampled it)
    a weight of 1. `cap` None: weights of 1.
    """
    if cap is None:
        return torch.ones_like(proximal)
    gap = (proximal - behaviour).detach()
    return torch.where(gap.isnan(), 0.0, gap).exp().clamp(max=cap)


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor | None,
    advantages: Tensor,
    mask: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    normaliser: Tensor | float | None = None,
    behaviour_logprobs: Tensor | None = None,
    importance_cap: float | None = None,
    entropies: Tensor | None = None,
    entropy_coef: float = 0.0,
    reference_logprobs: Tensor | None = None,
    kl_coef: float = 0.0,
    kl_estimator: Estimator = "k3",
) -> LossTerms:
    """Clipped policy gradient with DAPO's asymmetric range (equations 8 to 12), GRPO as the special case of
    clip_low = clip_high.

    loss = sum over tokens of [-w min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) + kl_coef KL - entropy_coef H]
    / normaliser, with r = exp(logprobs - old_logprobs) and w the importance weight.

    logprobs: the policy that learns. old_logprobs: the proximal policy, from which a step may not stray: the
    trainer's own log-probabilities before the first step on this batch. None, when the batch gets one step only: they
    are then the present ones, r = 1 exactly, nothing is clipped, and no further forward pass is needed.
    behaviour_logprobs: those of the engine that sampled; with `importance_cap` they give w = min(old / behaviour, cap).
    advantages: per token, already spread over the sequence. mask: bool or 0/1. normaliser None: the mask's sum.

    An empty mask gives a loss of 0 that is still tied to the graph.
    """
    mask = mask.to(logprobs.dtype)
    proximal = logprobs.detach() if old_logprobs is None else old_logprobs.detach()
    if normaliser is None:
        normaliser = mask.sum().clamp(min=1.0)
    ratio = torch.exp(logprobs - proximal)
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    gain, bounded = ratio * advantages, clipped * advantages
    weight = torch.ones_like(ratio)
    if behaviour_logprobs is not None:
        weight = importance_weights(proximal, behaviour_logprobs, importance_cap)
    per_token = -weight * torch.minimum(gain, bounded)
    sums = {
        "tokens": mask.sum(),
        "ratio": (ratio * mask).sum(),
        "clipped": ((gain > bounded) * mask).sum(),
        "approx_kl": (kl_divergence(proximal, logprobs, "k3") * mask).sum(),
        "importance_weight": (weight * mask).sum(),
    }
    if importance_cap is not None:
        sums["importance_clipped"] = ((weight >= importance_cap) * mask).sum()
    if entropies is not None:
        per_token = per_token - entropy_coef * entropies if entropy_coef else per_token
        sums["entropy"] = (entropies * mask).sum()
    if reference_logprobs is not None:
        kl = kl_divergence(logprobs, reference_logprobs, kl_estimator)
        per_token = per_token + kl_coef * kl if kl_coef else per_token
        sums["kl_to_reference"] = (kl * mask).sum()
    loss = (per_token * mask / normaliser).sum()
    sums["loss"] = loss
    return LossTerms(loss=loss, sums={name: value.detach() for name, value in sums.items()})


def sft_loss(logprobs: Tensor, mask: Tensor, *, normaliser: Tensor | float | None = None) -> LossTerms:
    """Negative log-likelihood per counted token; `normaliser` as in `policy_loss`."""
    mask = mask.to(logprobs.dtype)
    if normaliser is None:
        normaliser = mask.sum().clamp(min=1.0)
    loss = -(logprobs * mask / normaliser).sum()
    return LossTerms(loss=loss, sums={"tokens": mask.sum(), "loss": loss.detach()})
