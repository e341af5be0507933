"""Losses on tensors of per-token log-probabilities, as sums that can be added over micro-batches and ranks.

Every function accepts any shape (flat, or [B, T]); all tensors of a call have the same shape. `mask` selects the tokens
that count. `normaliser` is the divisor of the sum over tokens: the number of counted tokens of the WHOLE batch (token
mean, DAPO equation 12), or per token (length of its sequence) x (number of sequences) for the sequence mean of GRPO. It
is given by the caller, so the losses of micro-batches can be added.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from hamr.security.functions import LoadedFunction, describe_error, describe_value

Estimator = Literal["k1", "k2", "k3", "chi2"]


@dataclass(frozen=True, kw_only=True)
class LossTerms:
    """A differentiable loss, and detached sums over the counted tokens for metrics.

    `sums` always has `tokens`. A mean is sums[name] / sums["tokens"], after all micro-batches are added.
    """

    loss: Tensor
    sums: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TokenTerms:
    """Input of a loss function: tensors of the same shape, with one entry per token of a micro-batch.

    Only the gradient of `logprobs` (of the trained policy, in nats) reaches the model. `old_logprobs` are those before
    the first step on the batch, `advantages` those of the token's response, `importance_weights` the truncated
    trainer/engine correction. `sequences` (int64) is the index of the token's response in the micro-batch. Only tokens
    with `mask` count.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    importance_weights: Tensor
    mask: Tensor
    sequences: Tensor


Objective = Callable[[TokenTerms], Tensor]
"""Returns the loss of each token, to be averaged by hamr and minimised."""


def checked_objective(function: LoadedFunction) -> Objective:
    """Return the user's function as an objective whose returned values are checked.

    Raises:
        ConfigError: On four tokens of two responses the function fails, or does not return their losses.
    """

    def objective(tokens: TokenTerms) -> Tensor:
        try:
            losses = function(tokens)
        except Exception as error:
            raise function.source.error(f"raised {describe_error(error, function.source)}") from error
        if not isinstance(losses, Tensor) or losses.shape != tokens.logprobs.shape:
            shown = f"a tensor of shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else describe_value(losses)
            raise function.source.error(
                f"returned {shown}; return a tensor of the shape of tokens.logprobs, one loss each"
            )
        return losses

    logprobs = torch.tensor([-0.5, -1.0, -2.0, -0.1], requires_grad=True)
    tokens = TokenTerms(
        logprobs=logprobs,
        old_logprobs=logprobs.detach().clone(),
        advantages=torch.tensor([1.0, 1.0, -1.0, -1.0]),
        importance_weights=torch.ones(4),
        mask=torch.ones(4, dtype=torch.bool),
        sequences=torch.tensor([0, 0, 1, 1]),
    )
    losses = objective(tokens)
    if not losses.requires_grad or not bool(losses.isfinite().all()):
        raise function.source.error("returned losses that are not finite, or do not depend on tokens.logprobs")
    return objective


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


def importance_weights(proximal: Tensor, behaviour: Tensor, cap: float | None) -> Tensor:
    """Return min(p_trainer / p_engine, cap) per token, detached: truncated importance sampling.

    The inference engine and the trainer compute slightly different probabilities for the same weights (kernels,
    rounding, a concurrent weight update). The weight corrects for this, and the cap bounds its variance. A token with
    an engine log-probability of -inf gets the cap, and an unknown one (NaN: not sampled by an engine) gets a weight of
    1. `cap` None: weights of 1.
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
    objective: Objective | None = None,
    sequences: Tensor | None = None,
) -> LossTerms:
    """Return the clipped policy gradient loss with DAPO's asymmetric range (equations 8 to 12). GRPO is the special
    case clip_low = clip_high.

        loss = sum over tokens of [-w min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) + kl_coef KL - entropy_coef H] /
            normaliser

    with r = exp(logprobs - old_logprobs) and w the importance weight. An empty mask gives a loss of 0 that is still
    connected to the graph.

    Args:
        logprobs: Log-probabilities of the trained policy.
        old_logprobs: Log-probabilities of the proximal policy: those of the trainer before the first step on this
            batch. None if the batch gets one step only: they then equal the present ones, r = 1 exactly, nothing is
            clipped, and no extra forward pass is needed.
        advantages: Per token, already expanded over the sequence.
        mask: bool or 0/1.
        clip_low: Lower clipping range.
        clip_high: Upper clipping range.
        normaliser: Divisor of the sum. None: the sum of the mask.
        behaviour_logprobs: Log-probabilities of the inference engine. With `importance_cap` they give w = min(old /
            behaviour, cap).
        importance_cap: Maximum importance weight.
        entropies: Entropies H per token.
        entropy_coef: Weight of the entropy bonus.
        reference_logprobs: Log-probabilities of the reference policy.
        kl_coef: Weight of the KL term.
        kl_estimator: Estimator of the KL term, see `kl_divergence`.
        objective: Replaces -w min(...), the clipped loss of a token. Requires `sequences`, see `TokenTerms`.
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
    if objective is None:
        per_token = -weight * torch.minimum(gain, bounded)
    else:
        assert sequences is not None, "an objective needs them"
        per_token = objective(
            TokenTerms(
                logprobs=logprobs,
                old_logprobs=proximal,
                advantages=advantages,
                importance_weights=weight,
                mask=mask.bool(),
                sequences=sequences,
            )
        )
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
    """Return the negative log-likelihood per counted token. `normaliser` as in `policy_loss`."""
    mask = mask.to(logprobs.dtype)
    if normaliser is None:
        normaliser = mask.sum().clamp(min=1.0)
    loss = -(logprobs * mask / normaliser).sum()
    return LossTerms(loss=loss, sums={"tokens": mask.sum(), "loss": loss.detach()})
