"""Losses on tensors of per-token log-probabilities, as sums that can be added over micro-batches and ranks.

Every function accepts any shape (flat, or [B, T]); all tensors of a call have the same shape. `mask` selects the tokens
that count. `normaliser` is the divisor of the sum over tokens: the number of counted tokens of the WHOLE batch (token
mean, DAPO equation 12), or per token (length of its sequence) x (number of sequences) for the sequence mean of GRPO. It
is given by the caller, so the losses of micro-batches can be added.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from hamr.algorithms.importance import Correction, corrected_weights, correction_sums, importance_weights, log_ratio
from hamr.algorithms.objectives import clip
from hamr.algorithms.terms import LossTerms, Objective, TokenTerms

__all__ = [
    "Correction",
    "LossTerms",
    "Objective",
    "TokenTerms",
    "importance_weights",
    "kl_divergence",
    "policy_loss",
    "sft_loss",
]

Estimator = Literal["k1", "k2", "k3", "chi2"]


def kl_divergence(logprobs: Tensor, reference: Tensor, estimator: Estimator = "k3") -> Tensor:
    """Return the per-token estimate of KL(policy || reference) at tokens sampled from the policy (Schulman 2020).

    With d = log p - log p_ref: k1 = d (unbiased, may be negative; its expected gradient as a loss is 0, so use it only
    as a metric), k2 = d^2 / 2 (biased, low variance), k3 = exp(-d) - 1 + d (unbiased, never negative).

    chi2 = exp(d) - 1 estimates the chi-squared divergence instead (Laidlaw et al., "Correlated Proxies", 2024), which
    grows faster than KL for replies that are rare under the reference. It is computed per next token of the sampled
    responses, not per response. It is unbiased, and as a loss its expected gradient is half that of the divergence.

    >>> import torch
    >>> [round(float(kl_divergence(torch.tensor(-1.0), torch.tensor(-1.5), k)), 4) for k in ("k1", "k2", "k3", "chi2")]
    [0.5, 0.125, 0.1065, 0.6487]
    """
    d = logprobs - reference
    if estimator == "k1":
        return d
    if estimator == "k2":
        return 0.5 * d.square()
    if estimator == "chi2":
        return torch.exp(d.clamp(max=20.0)) - 1.0
    # Beyond exp(20) the estimate is useless and its gradient would dominate the batch.
    return torch.exp((-d).clamp(max=20.0)) - 1.0 + d


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
    correction: Correction | None = None,
    entropies: Tensor | None = None,
    entropy_coef: float = 0.0,
    reference_logprobs: Tensor | None = None,
    kl_coef: float = 0.0,
    kl_estimator: Estimator = "k3",
    objective: Objective | None = None,
    sequences: Tensor | None = None,
) -> LossTerms:
    """Return the policy gradient loss; by default the clipped one with DAPO's asymmetric range (equations 8 to 12).

        loss = sum over tokens of [objective(w, r, A) + kl_coef KL - entropy_coef H] / normaliser

    with r = exp(logprobs - old_logprobs) and w the importance weight; the default objective is
    -w min(r A, clip(r, 1 - clip_low, 1 + clip_high) A). An empty mask gives a loss of 0 that is still connected to the
    graph.

    Args:
        logprobs: Log-probabilities of the trained policy.
        old_logprobs: Log-probabilities of the proximal policy: those of the trainer before the first step on this
            batch, however old the responses are. None if the batch gets one step only: they then equal the present
            ones, r = 1 exactly, nothing is clipped, and no extra forward pass is needed.
        advantages: Per token, already expanded over the sequence.
        mask: bool or 0/1.
        clip_low: Lower clipping range.
        clip_high: Upper clipping range.
        normaliser: Divisor of the sum. None: the sum of the mask.
        behaviour_logprobs: Log-probabilities of the inference engine, for w and `TokenTerms`. NaN: not sampled by an
            engine. None: all of them.
        importance_cap: w = min(old / behaviour, cap).
        correction: Other ways to compute w. Replaces `importance_cap`.
        entropies: Entropies H per token.
        entropy_coef: Weight of the entropy bonus.
        reference_logprobs: Log-probabilities of the reference policy.
        kl_coef: Weight of the KL term.
        kl_estimator: Estimator of the KL term, see `kl_divergence`.
        objective: Replaces the clipped loss of a token (`hamr.algorithms.objectives`, or a user's).
        sequences: Index of each token's response. None: one response per row.
    """
    mask = mask.to(logprobs.dtype)
    proximal = logprobs.detach() if old_logprobs is None else old_logprobs.detach()
    if normaliser is None:
        normaliser = mask.sum().clamp(min=1.0)
    if sequences is None:
        sequences = _one_response_per_row(logprobs)
    correction = correction or Correction(cap=importance_cap)
    behaviour = behaviour_logprobs
    gap = log_ratio(proximal, behaviour)
    sampled = torch.zeros_like(mask) if behaviour is None else mask * ~behaviour.isnan()
    weights = corrected_weights(gap, correction, mask, sequences, sampled)
    objective = objective or partial(clip, clip_low=clip_low, clip_high=clip_high)
    if not mask.any():
        objective = _no_loss  # a user's function may divide by the number of counted tokens
    tokens = TokenTerms(
        logprobs=logprobs,
        old_logprobs=proximal,
        behaviour_logprobs=proximal if behaviour is None else torch.where(behaviour.isnan(), proximal, behaviour),
        advantages=advantages,
        importance_weights=weights,
        mask=mask.bool(),
        sequences=sequences,
    )
    per_token = objective(tokens)
    if not per_token.requires_grad:  # of an own objective that returns constants
        per_token = per_token + logprobs * 0.0
    sums = {
        "tokens": mask.sum(),
        "ratio": (tokens.ratio * mask).sum(),
        "clipped": (_loses_gradient(objective, tokens) * mask).sum(),
        "approx_kl": (kl_divergence(proximal, logprobs, "k3") * mask).sum(),
        **correction_sums(gap, weights, correction, mask, sequences, sampled),
    }
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


def _no_loss(tokens: TokenTerms) -> Tensor:
    return tokens.logprobs * 0.0


def _one_response_per_row(like: Tensor) -> Tensor:
    rows = torch.arange(like.shape[0] if like.dim() > 1 else 1, device=like.device)
    return rows.repeat_interleave(like.numel() // max(1, len(rows))).view_as(like)


def _loses_gradient(objective: Objective, tokens: TokenTerms) -> Tensor:
    """Return 1 for a token that has an advantage and a weight but no gradient, because the objective clips it."""
    leaf = tokens.logprobs.detach().requires_grad_()
    with torch.enable_grad():
        losses = objective(replace(tokens, logprobs=leaf)) + leaf * 0.0  # the objective may return constants
        (gradient,) = torch.autograd.grad((losses * tokens.mask).sum(), leaf)
    return (gradient == 0) & (tokens.advantages != 0) & (tokens.importance_weights != 0)


def sft_loss(logprobs: Tensor, mask: Tensor, *, normaliser: Tensor | float | None = None) -> LossTerms:
    """Return the negative log-likelihood per counted token. `normaliser` as in `policy_loss`."""
    mask = mask.to(logprobs.dtype)
    if normaliser is None:
        normaliser = mask.sum().clamp(min=1.0)
    loss = -(logprobs * mask / normaliser).sum()
    return LossTerms(loss=loss, sums={"tokens": mask.sum(), "loss": loss.detach()})
