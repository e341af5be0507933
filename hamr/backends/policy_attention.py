"""Attention over a packed row of segments: every group's prompt once, its completions attending to it.

The row is `[prompt | completion 1 | completion 2 | ...]` per group. Tokens of a prompt attend causally within the
prompt; tokens of a completion attend to the whole prompt of their group and causally within the completion. That is
exactly what each completion sees when it stands alone behind its own copy of the prompt, so log-probabilities and
gradients are those of the plain padded batch.

Shape legend: T tokens of the row, H query heads, K key/value heads, R = H / K, D head width, N completions of a
group, L the longest of them, P prompt tokens, S = P + L.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

NAME = "hamr_shared_prompt"
"""Under this name the function is registered with transformers."""

DENSE_SCORES = 16 << 20
"""On the CPU, up to so many scores per call are kept as a dense matrix: matmuls on bfloat16 tiles and one softmax
take a third of the time of the flash kernel's backward pass. Above it memory matters more."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One group's stretch of the row: the prompt is [start, prompt_end), the completions follow without gaps.

    `lengths` are those of the completions' inputs (0 is possible: a completion of one token has no input of its own).
    `scatter_NL` places each completion's tokens in a padded [N, L] block, `gather` reads them back in row order; both
    are None where all lengths are equal and a view does the same.
    """

    start: int
    prompt_end: int
    lengths: tuple[int, ...]
    scatter_NL: Tensor | None = None
    gather: Tensor | None = None

    @property
    def end(self) -> int:
        return self.prompt_end + sum(self.lengths)


def segment(start: int, prompt: int, lengths: tuple[int, ...], device: torch.device | str = "cpu") -> Segment:
    """A segment at `start` with its index tensors.

    >>> s = segment(10, 3, (2, 1))
    >>> s.end, s.scatter_NL.tolist(), s.gather.tolist()
    (16, [[0, 1], [2, 2]], [0, 1, 2])
    """
    if len(set(lengths)) <= 1:
        return Segment(start=start, prompt_end=start + prompt, lengths=lengths)
    longest, total = max(lengths), sum(lengths)
    scatter: list[list[int]] = []
    gather: list[int] = []
    offset = 0
    for row, length in enumerate(lengths):
        # Padding reads any existing token: no real query can attend to it, since it comes later.
        scatter.append([min(offset + i, total - 1) if i >= length else offset + i for i in range(longest)])
        gather.extend(row * longest + i for i in range(length))
        offset += length
    return Segment(
        start=start,
        prompt_end=start + prompt,
        lengths=lengths,
        scatter_NL=torch.tensor(scatter, device=device),
        gather=torch.tensor(gather, device=device),
    )


def shared_prompt_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    hamr_segments: tuple[Segment, ...] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: query [1, H, T, D], key and value [1, K, T, D] -> [1, T, H, D].

    `hamr_segments` describe the row and travel through the model's keyword arguments. Raises TypeError without them:
    a model that drops unknown arguments would otherwise attend across customers.
    """
    if hamr_segments is None:
        raise TypeError("the model's attention dropped `hamr_segments`; set trainer.attention=padded for this model")
    scale = scaling if scaling is not None else 1.0 / math.sqrt(query.shape[-1])
    device = query.device.type
    if torch.is_autocast_enabled(device):
        # Rotary embeddings leave queries and keys in float32, values come out of a cast matmul.
        query, key, value = (x.to(torch.get_autocast_dtype(device)) for x in (query, key, value))
    # One split, whose backward pass is one concatenation: the gradient of a slice is a whole row of zeros, and a row
    # has hundreds of slices.
    sizes = [size for seg in hamr_segments for size in (seg.prompt_end - seg.start, seg.end - seg.prompt_end)]
    q_parts, k_parts, v_parts = (x[0].transpose(0, 1).split(sizes) for x in (query, key, value))
    parts: list[Tensor] = []
    with torch.autocast(device, enabled=False):
        for i, seg in enumerate(hamr_segments):
            (q, q_own), (k, k_own), (v, v_own) = (x[2 * i : 2 * i + 2] for x in (q_parts, k_parts, v_parts))
            parts.append(_attend(q[None], k[None], v[None], scale)[0])
            if sum(seg.lengths):
                parts.append(_completions(seg, q_own, (k, k_own), (v, v_own), scale))
    return torch.cat(parts)[None], None


def _completions(
    seg: Segment, q_THD: Tensor, keys: tuple[Tensor, Tensor], values: tuple[Tensor, Tensor], scale: float
) -> Tensor:
    """The group's completions as one batch of N rows, padded to the longest only here -> [sum of lengths, H, D].

    `keys` and `values` are those of the prompt [P, K, D] and of the completions [sum of lengths, K, D].
    """
    n, longest = len(seg.lengths), max(seg.lengths)

    def block(x_THD: Tensor) -> Tensor:
        if seg.scatter_NL is None:
            return x_THD.reshape(n, longest, *x_THD.shape[1:])
        return x_THD[seg.scatter_NL]

    def with_prompt(prompt_PKD: Tensor, own_TKD: Tensor) -> Tensor:
        return torch.cat([prompt_PKD.expand(n, -1, -1, -1), block(own_TKD)], dim=1)

    out_NLHD = _attend(block(q_THD), with_prompt(*keys), with_prompt(*values), scale)
    flat = out_NLHD.flatten(0, 1)
    return flat if seg.gather is None else flat[seg.gather]


def _attend(q_NLHD: Tensor, k_NSKD: Tensor, v_NSKD: Tensor, scale: float) -> Tensor:
    """Causal attention in which query i sees keys 0 .. S - L + i -> [N, L, H, D]."""
    n, length, heads, _ = q_NLHD.shape
    keys, kv_heads = k_NSKD.shape[1:3]
    if q_NLHD.device.type == "cpu" and n * heads * length * keys <= DENSE_SCORES:
        return _DenseAttention.apply(q_NLHD, k_NSKD, v_NSKD, _bias(length, keys, heads // kv_heads, q_NLHD), scale)
    q, k, v = (x.transpose(1, 2) for x in (q_NLHD, k_NSKD, v_NSKD))
    mask = None if length == keys else _visible(length, keys, q.device)
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=heads != kv_heads
    )
    return out.transpose(1, 2)


def _visible(length: int, keys: int, device: torch.device) -> Tensor:
    return torch.ones(length, keys, dtype=torch.bool, device=device).tril(keys - length)


_biases: dict[tuple[int, int, int, torch.dtype], Tensor] = {}


def _bias(length: int, keys: int, repeat: int, like: Tensor) -> Tensor:
    """Additive causal mask [R * L, S] for queries whose R heads per key head are folded into the length.

    Every layer of a forward pass asks for the same few; the table is emptied before it grows.
    """
    wanted = (length, keys, repeat, like.dtype)
    if wanted not in _biases:
        if len(_biases) >= 64:
            _biases.clear()
        bias = torch.zeros(length, keys, dtype=like.dtype)
        bias.masked_fill_(~_visible(length, keys, bias.device), float("-inf"))
        _biases[wanted] = bias.repeat(repeat, 1)
    return _biases[wanted]


class _DenseAttention(torch.autograd.Function):
    """softmax(scale q k^T + bias) v with the probabilities kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, q_NLHD: Tensor, k_NSKD: Tensor, v_NSKD: Tensor, bias: Tensor, scale: float) -> Tensor:
        kv_heads = k_NSKD.shape[2]
        q, k, v = _fold(q_NLHD, kv_heads), _fold(k_NSKD, kv_heads), _fold(v_NSKD, kv_heads)
        probabilities = torch.softmax(torch.baddbmm(bias, q, k.transpose(1, 2), alpha=scale), dim=-1)
        ctx.save_for_backward(q_NLHD, k_NSKD, v_NSKD, probabilities)
        ctx.scale = scale
        return _unfold(torch.bmm(probabilities, v), q_NLHD)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q_NLHD, k_NSKD, v_NSKD, p = ctx.saved_tensors
        kv_heads = k_NSKD.shape[2]
        q, k, v = _fold(q_NLHD, kv_heads), _fold(k_NSKD, kv_heads), _fold(v_NSKD, kv_heads)
        grad = _fold(grads[0], kv_heads)
        d_v = torch.bmm(p.transpose(1, 2), grad)
        d_scores = torch._softmax_backward_data(torch.bmm(grad, v.transpose(1, 2)), p, -1, p.dtype)
        d_q = torch.bmm(d_scores, k).mul_(ctx.scale)
        d_k = torch.bmm(d_scores.transpose(1, 2), q).mul_(ctx.scale)
        return _unfold(d_q, q_NLHD), _unfold(d_k, k_NSKD), _unfold(d_v, v_NSKD), None, None


def _fold(x_NLHD: Tensor, kv_heads: int) -> Tensor:
    """[N, L, K * R, D] -> [N * K, R * L, D]: heads that share a key head become further rows of it."""
    n, length, heads, width = x_NLHD.shape
    return (
        x_NLHD.view(n, length, kv_heads, heads // kv_heads, width)
        .permute(0, 2, 3, 1, 4)
        .reshape(n * kv_heads, heads // kv_heads * length, width)
    )


def _unfold(x: Tensor, like_NLHD: Tensor) -> Tensor:
    """The inverse of `_fold` -> [N, L, H, D]."""
    n, length, heads, width = like_NLHD.shape
    kv_heads = x.shape[0] // n
    return x.view(n, kv_heads, heads // kv_heads, length, width).permute(0, 3, 1, 2, 4).reshape(n, length, heads, width)
