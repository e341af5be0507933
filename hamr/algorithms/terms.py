"""Input and output of a loss: the tokens of a micro-batch, and sums that can be added over micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class LossTerms:
    """A differentiable loss, and detached sums over the counted tokens for metrics.

    `sums` always has `tokens`, the number of counted tokens. `token_means` of the sums of all micro-batches has the
    means.
    """

    loss: Tensor
    sums: dict[str, Tensor] = field(default_factory=dict)


SAMPLED = ("engine_kl", "importance_ratio/")
"""Sums over the tokens that an engine sampled; their number is `sampled`. Others are over all counted tokens."""
NUMBERS = ("tokens", "sampled")


def token_means(sums: Mapping[str, float]) -> dict[str, float]:
    """Return the means of the sums. Those over sampled tokens are left out if there are none."""
    counts = {name: sums["sampled"] if name.startswith(SAMPLED) else max(sums["tokens"], 1.0) for name in sums}
    return {name: value / counts[name] for name, value in sums.items() if counts[name] and name not in NUMBERS}


@dataclass(frozen=True, kw_only=True)
class TokenTerms:
    """Input of a loss function: tensors of one shape, `(tokens,)` or `(batch, tokens)`, with an entry per token of a
    micro-batch.

    Only the gradient of `logprobs` (of the trained policy, in nats) reaches the model. `old_logprobs` are those before
    the first step on the batch, `behaviour_logprobs` those of the engine when it sampled the token (`old_logprobs` for
    a token that no engine sampled), `advantages` those of the token's response, `importance_weights` the trainer/engine
    correction. `sequences` (int64) is the index of the token's response in the micro-batch, which holds all tokens of
    that response. Only tokens with `mask` count.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    behaviour_logprobs: Tensor
    advantages: Tensor
    importance_weights: Tensor
    mask: Tensor
    sequences: Tensor

    @property
    def ratio(self) -> Tensor:
        """Probability ratio of the trained policy to the one before the first step on the batch."""
        return torch.exp(self.logprobs - self.old_logprobs)

    def response_mean(self, values: Tensor) -> Tensor:
        """Return, at each token, the mean of `values` over the counted tokens of its response."""
        return response_mean(values, self.mask.to(values.dtype), self.sequences)


Objective = Callable[[TokenTerms], Tensor]
"""Returns the loss of each token in the shape of `logprobs`, to be averaged by hamr and minimised."""


def response_sum(values: Tensor, sequences: Tensor) -> Tensor:
    """Return, at each token, the sum of `values` over the tokens of its response, in the shape of `values`."""
    owner = sequences.flatten()
    sums = torch.zeros(owner.numel(), dtype=values.dtype, device=values.device)
    return sums.index_add(0, owner, values.flatten())[owner].view_as(values)


def response_mean(values: Tensor, mask: Tensor, sequences: Tensor) -> Tensor:
    """Return, at each token, the mean of `values` over the counted tokens of its response, in the shape of `values`."""
    return response_sum(values * mask, sequences) / response_sum(mask, sequences).clamp(min=1.0)
