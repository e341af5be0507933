"""Log-probabilities and entropies of chosen tokens, computed from hidden states.

The output projection takes a third of a small model's training cost in the plain implementation: float32 logits, a
log-softmax of the same size, and both again in the backward pass. Here the matmul runs in the model's own dtype. Only a
few rows at a time are in float32, so they stay in the processor's cache. The backward pass turns the kept logits into
their gradient in place.

Shape legend: N rows (one per completion token), E hidden width, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

KEEP_BYTES = 1 << 30
"""Maximum bytes of a micro-batch's logits that are kept for the backward pass. Larger ones are recomputed."""

_CACHED_FLOATS = 3 << 18
"""Float32 values processed at a time on a CPU: 3 MiB fit in the second-level cache."""


def token_logprobs(
    hidden_NE: Tensor, weight_VE: Tensor, bias_V: Tensor | None, targets_N: Tensor, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return log p(target) and the entropy of p per row, in float32 nats; p = softmax(logits / temperature).

    Both are differentiable once (the backward pass reuses the kept logits' memory). N = 0 gives empty tensors that are
    still connected to the graph.

    Example: two classes with logits 0 and ln 3 give p = (1/4, 3/4), log p(1) = -0.2877, entropy 0.5623.
    """
    logprobs, entropies = _TokenLogprobs.apply(hidden_NE, weight_VE, bias_V, targets_N, temperature)
    return logprobs, entropies


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        n, vocabulary = hidden.shape[0], weight.shape[0]
        logprobs = torch.empty(n, dtype=torch.float32, device=hidden.device)
        entropies, normalisers = torch.empty_like(logprobs), torch.empty_like(logprobs)
        needs_grad = any(ctx.needs_input_grad[:3])
        keep = needs_grad and n * vocabulary * hidden.element_size() <= KEEP_BYTES
        kept = []
        for block in _blocks(n, vocabulary, hidden.element_size()):
            logits = _logits(hidden[block], weight, bias)
            for rows in _rows(logits):
                _read(logits[rows], targets[block][rows], temperature, logprobs[block][rows], entropies[block][rows],
                      normalisers[block][rows])  # fmt: skip
            if keep:
                kept.append(logits)
        ctx.save_for_backward(hidden, weight, bias, targets, entropies, normalisers)
        ctx.temperature, ctx.kept = temperature, kept if keep else None
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, entropies, normalisers = ctx.saved_tensors
        d_logprobs, d_entropies = grads
        with_entropy = bool(d_entropies.any())
        d_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        d_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] and not hidden.shape[0] else None
        d_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and ctx.needs_input_grad[2] else None
        blocks = _blocks(hidden.shape[0], weight.shape[0], hidden.element_size())
        if ctx.needs_input_grad[1] and len(blocks) > 1:  # a bfloat16 sum loses the later blocks' small terms
            d_weight = torch.zeros_like(weight, dtype=torch.float32)
        for i, block in enumerate(blocks):
            logits = ctx.kept[i] if ctx.kept is not None else _logits(hidden[block], weight, bias)
            for rows in _rows(logits):
                _to_gradient(logits[rows], targets[block][rows], ctx.temperature, normalisers[block][rows],
                             d_logprobs[block][rows], d_entropies[block][rows] if with_entropy else None,
                             entropies[block][rows])  # fmt: skip
            if d_hidden is not None:
                torch.mm(logits, weight, out=d_hidden[block])
            if ctx.needs_input_grad[1]:
                product = torch.mm(logits.t(), hidden[block])
                d_weight = product if d_weight is None else d_weight.add_(product)
            if d_bias is not None:
                d_bias += logits.sum(0, dtype=torch.float32)
        ctx.kept = None
        d_weight = d_weight if d_weight is None else d_weight.to(weight.dtype)
        return d_hidden, d_weight, d_bias if d_bias is None else d_bias.to(bias.dtype), None, None


def _blocks(n: int, vocabulary: int, item_bytes: int) -> list[slice]:
    """Return the blocks of rows whose logits exist at the same time if not kept; a single block if all fit."""
    size = max(1, KEEP_BYTES // (vocabulary * item_bytes))
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


def _rows(logits: Tensor) -> list[slice]:
    size = max(1, _CACHED_FLOATS // logits.shape[1]) if logits.device.type == "cpu" else 1024
    return [slice(i, min(i + size, logits.shape[0])) for i in range(0, logits.shape[0], size)]


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(hidden, weight.t()) if bias is None else torch.addmm(bias, hidden, weight.t())


def _read(
    logits: Tensor, targets: Tensor, temperature: float, logprobs: Tensor, entropies: Tensor, normalisers: Tensor
) -> None:
    """Fill the outputs for a few rows.

    With m = max x and s = sum exp(x - m): log Z = m + log s and H = log s - sum (x - m) exp(x - m) / s.
    """
    x = logits.to(torch.float32, copy=True)
    if temperature != 1.0:
        x.div_(temperature)
    chosen = x.gather(1, targets[:, None])[:, 0]
    highest = x.amax(1, keepdim=True)
    x.sub_(highest)
    exp = x.exp()
    total = exp.sum(1)
    log_total = total.log()
    torch.add(highest[:, 0], log_total, out=normalisers)
    torch.sub(chosen, normalisers, out=logprobs)
    torch.sub(log_total, exp.mul_(x).sum(1).div_(total), out=entropies)


def _to_gradient(
    logits: Tensor,
    targets: Tensor,
    temperature: float,
    normalisers: Tensor,
    d_logprobs: Tensor,
    d_entropies: Tensor | None,
    entropies: Tensor,
) -> None:
    """Replace a few rows of logits by the gradient with respect to them, in place.

    d log p(t) / d x_j = [j = t] - p_j and d H / d x_j = -p_j (log p_j + H), both divided by the temperature.
    """
    x = logits.to(torch.float32, copy=True)
    if temperature != 1.0:
        x.div_(temperature)
    x.sub_(normalisers[:, None])
    if d_entropies is None:
        x.exp_().mul_(-d_logprobs[:, None])
    else:
        p = x.exp()
        x.add_(entropies[:, None]).mul_(-d_entropies[:, None]).sub_(d_logprobs[:, None])
        x.mul_(p)
    x.scatter_add_(1, targets[:, None], d_logprobs[:, None].to(x.dtype))
    if temperature != 1.0:
        x.div_(temperature)
    logits.copy_(x)
