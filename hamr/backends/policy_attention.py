"""Attention over a packed row: what sequences have in common stands there once, and they attend to it.

The row is cut into blocks. A block is a number of stretches of tokens, side by side, that all continue the same prefix
(one or two stretches earlier in the row): each token attends to the prefix and causally within its own stretch. Prompts
that begin alike are a block behind their common beginning, a group's completions a block behind its prompt. So each
token sees exactly what it sees when its sequence stands alone, and log-probabilities and gradients are those of the
plain padded batch.

Shape legend: T tokens of the row, H query heads, K key/value heads, R = H / K, D head width, B stretches of a block,
L the longest of them, P tokens of its prefix, S = P + L.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

NAME = "hamr_shared_prompt"
"""Under this name the function is registered with transformers."""

DENSE_SCORES = 48 << 20
"""On the CPU, up to so many scores of a row are kept as dense matrices: matmuls on bfloat16 tiles and one softmax take
a third of the time of the flash kernel's backward pass. Above it memory matters more."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Stretches of `lengths` (all > 0), laid end to end from `start`, each continuing the token ranges `prefix`.

    `pad` [B * L] reads the stretches into a padded block (padding repeats a token that exists: no real query attends
    to it, since it comes later), `real` finds their tokens in it again; both None where there is nothing to pad.
    """

    prefix: tuple[tuple[int, int], ...]
    start: int
    lengths: tuple[int, ...]
    pad: Tensor | None = None
    real: Tensor | None = None

    @property
    def own(self) -> slice:
        return slice(self.start, self.start + sum(self.lengths))

    @property
    def size(self) -> tuple[int, int, int]:
        """(B, L, P)."""
        longest = max(self.lengths) if self.pad is None else len(self.pad) // len(self.lengths)
        return len(self.lengths), longest, sum(end - begin for begin, end in self.prefix)

    @property
    def scores(self) -> int:
        """Scores per head."""
        count, longest, before = self.size
        return count * longest * (before + longest)


def block(
    prefix: Sequence[tuple[int, int]],
    start: int,
    lengths: Sequence[int],
    device: torch.device | str = "cpu",
    multiple: int = 1,
) -> Block:
    """A block with its index tensors, padded to a multiple of `multiple`.

    >>> b = block([(0, 4)], 10, (2, 1))
    >>> b.pad.tolist(), b.real.tolist(), b.size
    ([0, 1, 2, 2], [0, 1, 2], (2, 2, 4))
    """
    pad = real = None
    longest = -(-max(lengths) // multiple) * multiple
    if set(lengths) != {longest}:
        total, offset = sum(lengths), 0
        reads: list[int] = []
        finds: list[int] = []
        for i, length in enumerate(lengths):
            reads += [min(offset + j, total - 1) for j in range(longest)]
            finds += range(i * longest, i * longest + length)
            offset += length
        pad, real = torch.tensor(reads, device=device), torch.tensor(finds, device=device)
    return Block(prefix=tuple(prefix), start=start, lengths=tuple(lengths), pad=pad, real=real)


def shared_prompt_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    hamr_blocks: tuple[Block, ...] | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: query [1, H, T, D], key and value [1, K, T, D] -> [1, T, H, D].

    `hamr_blocks` tile the row in order, but for filling at its end (which attends to nothing), and travel through the
    model's keyword arguments. Raises TypeError without them: a model that drops unknown arguments would otherwise
    attend across customers.
    """
    if hamr_blocks is None:
        raise TypeError("the model's attention dropped `hamr_blocks`; set trainer.attention=padded for this model")
    scale = scaling if scaling is not None else 1.0 / math.sqrt(query.shape[-1])
    device = query.device.type
    if torch.is_autocast_enabled(device):
        # Rotary embeddings leave queries and keys in float32, values come out of a cast matmul.
        query, key, value = (x.to(torch.get_autocast_dtype(device)) for x in (query, key, value))
    filling = query.shape[2] - hamr_blocks[-1].own.stop
    q_THD, k_TKD, v_TKD = (x[0].transpose(0, 1)[: x.shape[2] - filling] for x in (query, key, value))
    dense = device == "cpu" and query.shape[1] * sum(b.scores for b in hamr_blocks) <= DENSE_SCORES
    with torch.autocast(device, enabled=False):
        if dense:
            out_THD = _DenseAttention.apply(q_THD, k_TKD, v_TKD, hamr_blocks, scale)
        else:
            out_THD = torch.cat([_library_attention(q_THD, k_TKD, v_TKD, b, scale) for b in hamr_blocks])
    return F.pad(out_THD, (0, 0, 0, 0, 0, filling))[None], None


def _library_attention(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, b: Block, scale: float) -> Tensor:
    """One block through torch's own kernels -> [own tokens, H, D]."""
    length, keys = b.size[1], b.size[1] + b.size[2]

    def with_prefix(x_TKD: Tensor) -> Tensor:
        before = [x_TKD[begin:end].expand(len(b.lengths), -1, -1, -1) for begin, end in b.prefix]
        return torch.cat([*before, _padded(x_TKD, b)], dim=1).transpose(1, 2)

    mask = None if length == keys else _visible(length, keys, q_THD.device)
    out_BHLD = F.scaled_dot_product_attention(
        _padded(q_THD, b).transpose(1, 2),
        with_prefix(k_TKD),
        with_prefix(v_TKD),
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=q_THD.shape[1] != k_TKD.shape[1],
    )
    return _unpadded(out_BHLD.transpose(1, 2), b)


def _padded(x_THD: Tensor, b: Block) -> Tensor:
    """The block's own tokens -> [B, L, H, D]."""
    own = x_THD[b.own] if b.pad is None else x_THD[b.own].index_select(0, b.pad)
    return own.unflatten(0, b.size[:2])


def _unpadded(x_BLHD: Tensor, b: Block) -> Tensor:
    """The inverse of `_padded` -> [own tokens, H, D]."""
    flat = x_BLHD.flatten(0, 1)
    return flat if b.real is None else flat.index_select(0, b.real)


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
    """softmax(scale q k^T + bias) v, block by block, the probabilities kept for the backward pass.

    One function for the whole row: the gradient of a slice would be a whole row of zeros, and there are many slices.
    """

    @staticmethod
    def forward(
        ctx: Any, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, blocks: tuple[Block, ...], scale: float
    ) -> Tensor:
        repeat = q_THD.shape[1] // k_TKD.shape[1]
        probabilities, out = [], []
        for b in blocks:
            q, k, v = _queries(q_THD, b, repeat), _keys(k_TKD, b), _keys(v_TKD, b)
            bias = _bias(b.size[1], k.shape[1], repeat, q)
            p = torch.softmax(torch.baddbmm(bias, q, k.transpose(1, 2), alpha=scale), dim=-1)
            probabilities.append(p)
            out.append(_tokens(torch.bmm(p, v), b, repeat))
        ctx.save_for_backward(q_THD, k_TKD, v_TKD, *probabilities)
        ctx.blocks, ctx.scale, ctx.repeat = blocks, scale, repeat
        return torch.cat(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q_THD, k_TKD, v_TKD, *probabilities = ctx.saved_tensors
        d_q, d_k, d_v = [], [], []
        # A prefix gets a share from every block behind it: summed in float32, in whatever order they come.
        k_prefix, v_prefix = (torch.zeros(k_TKD.shape, dtype=torch.float32) for _ in range(2))
        for b, p in zip(ctx.blocks, probabilities, strict=True):
            q, k, v = _queries(q_THD, b, ctx.repeat), _keys(k_TKD, b), _keys(v_TKD, b)
            grad = _queries(grads[0], b, ctx.repeat, zero=True)
            d_scores = torch._softmax_backward_data(torch.bmm(grad, v.transpose(1, 2)), p, -1, p.dtype)
            d_q.append(_tokens(torch.bmm(d_scores, k).mul_(ctx.scale), b, ctx.repeat))
            d_k.append(_own_and_prefix(torch.bmm(d_scores.transpose(1, 2), q).mul_(ctx.scale), b, k_prefix))
            d_v.append(_own_and_prefix(torch.bmm(p.transpose(1, 2), grad), b, v_prefix))
        k_grad, v_grad = k_prefix.add_(torch.cat(d_k)), v_prefix.add_(torch.cat(d_v))
        return torch.cat(d_q), k_grad.to(k_TKD.dtype), v_grad.to(v_TKD.dtype), None, None


def _queries(x_THD: Tensor, b: Block, repeat: int, *, zero: bool = False) -> Tensor:
    """The block's tokens -> [B * K, R * L, D]: heads that share a key head become further rows of it.

    `zero`: padding is 0 rather than some token.
    """
    count, longest, _ = b.size
    if zero and b.real is not None:
        padded = x_THD.new_zeros(count * longest, *x_THD.shape[1:])
        padded[b.real] = x_THD[b.own]
        x_BLHD = padded.unflatten(0, (count, longest))
    else:
        x_BLHD = _padded(x_THD, b)
    folded = x_BLHD.unflatten(2, (-1, repeat)).permute(0, 2, 3, 1, 4)
    return folded.reshape(-1, repeat * longest, x_THD.shape[2])


def _tokens(x: Tensor, b: Block, repeat: int) -> Tensor:
    """The inverse of `_queries` -> [own tokens, H, D]."""
    count, longest, _ = b.size
    x_BKRLD = x.view(count, -1, repeat, longest, x.shape[-1])
    return _unpadded(x_BKRLD.permute(0, 3, 1, 2, 4).flatten(2, 3), b)


def _keys(x_TKD: Tensor, b: Block) -> Tensor:
    """Prefix and own tokens -> [B * K, S, D]."""
    count, longest, before = b.size
    out_BKSD = x_TKD.new_empty(count, x_TKD.shape[1], before + longest, x_TKD.shape[2])
    at = 0
    for begin, end in b.prefix:
        out_BKSD[:, :, at : at + end - begin] = x_TKD[begin:end].transpose(0, 1)
        at += end - begin
    out_BKSD[:, :, at:] = _padded(x_TKD, b).transpose(1, 2)
    return out_BKSD.flatten(0, 1)


def _own_and_prefix(d: Tensor, b: Block, prefix_TKD: Tensor) -> Tensor:
    """Adds the prefix' share of a gradient [B * K, S, D] to `prefix_TKD` and returns the own tokens' [own, K, D]."""
    d_BKSD = d.unflatten(0, (len(b.lengths), -1))
    at = 0
    for begin, end in b.prefix:
        share_KPD = d_BKSD[:, :, at : at + end - begin].sum(0, dtype=torch.float32)
        prefix_TKD[begin:end] += share_KPD.transpose(0, 1)
        at += end - begin
    return _unpadded(d_BKSD[:, :, at:].transpose(1, 2), b)
