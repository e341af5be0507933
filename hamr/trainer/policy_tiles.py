"""Attention over a packed row as a few large dense products, which are fast on a CPU.

A row has one block per group. One operation per block and layer has more overhead than computation, so blocks are
combined into tiles. Stretches and prefixes are padded to the tile's longest. Three tables of row numbers, computed once
and used in every layer, say where queries and keys are read and where results are written. A key that many stretches
attend to gets the sum of their gradients, in float32.

Shape legend: T tokens of the row, H query heads, K key/value heads, R = H / K, D head width; of a tile: n stretches, L
tokens of the longest, P tokens of the longest prefix, S = P + L keys of a stretch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from hamr.trainer.policy_blocks import Block

MULTIPLE = 16
"""Stretches and prefixes are padded to multiples of this, because matrix kernels are compiled for every new shape."""

TILE_COST = 16_384
"""Cost of one more tile, in scores per head. Blocks are joined if this exceeds the padding that joining adds."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Tile:
    """Row numbers of a tile.

    `queries` [K n R L] reads [H T] rows, `keys` [K n S] reads [K T] rows, `grads` is `queries` for [T H] rows followed
    by one row of zeros, for padding. `bias` [K n, R L, S] masks the keys that a query may not attend to. `outputs` and
    `inputs` are the tile's places among the outputs and the keys of all tiles.
    """

    queries: Tensor
    keys: Tensor
    grads: Tensor
    bias: Tensor
    outputs: slice
    inputs: slice

    def take_queries(self, x: Tensor, rows: Tensor) -> Tensor:
        """Gather query rows: [., D] -> [K n, R L, D]."""
        return x.index_select(0, rows).view(*self.bias.shape[:2], x.shape[-1])

    def take_keys(self, x: Tensor) -> Tensor:
        """Gather key rows: [K T, D] -> [K n, S, D]."""
        return x.index_select(0, self.keys).view(self.bias.shape[0], self.bias.shape[2], x.shape[-1])


@dataclass(frozen=True, kw_only=True, eq=False)
class Tiling:
    """Tiles of a row.

    `found` [T H] is the place of a token's output among the tiles' outputs (the last place is a zero, for padding).
    `shares` from `offsets` [K T] on are the places of a key among the tiles' keys.
    """

    tiles: tuple[Tile, ...]
    found: Tensor
    shares: Tensor
    offsets: Tensor


@lru_cache(maxsize=2)
def tiling(blocks: tuple[Block, ...], tokens: int, heads: int, kv_heads: int, dtype: torch.dtype) -> Tiling:
    """Return the tables for a row of `tokens` tokens. Every layer of a micro-batch uses the same ones."""
    repeat = heads // kv_heads
    head_K1R1 = torch.arange(heads).view(kv_heads, 1, repeat, 1)
    tiles, places, owners = [], [], []
    outputs = inputs = 0
    found_TH = torch.full((tokens, heads), -1)
    for joined in join(blocks):
        own_nL, real_nL, keys_nS, valid_nS, visible_nLS = _table(joined)
        n, longest = own_nL.shape
        shape = (kv_heads, n, repeat, longest)
        queries = head_K1R1 * tokens + own_nL[:, None]
        real = real_nL[:, None].expand(shape)
        grads = torch.where(real, own_nL[:, None] * heads + head_K1R1, tokens * heads)
        out = slice(outputs, outputs + queries.numel())
        found_TH.view(-1)[grads[real]] = torch.arange(out.start, out.stop).view(shape)[real]
        keys = torch.arange(kv_heads)[:, None, None] * tokens + keys_nS
        into = slice(inputs, inputs + keys.numel())
        places.append(torch.arange(into.start, into.stop).view(keys.shape)[:, valid_nS].flatten())
        owners.append(keys[:, valid_nS].flatten())
        bias = torch.zeros(visible_nLS.shape, dtype=dtype).masked_fill_(~visible_nLS, float("-inf"))
        tiles.append(
            Tile(
                queries=queries.flatten(),
                keys=keys.flatten(),
                grads=grads.flatten(),
                bias=bias.repeat(kv_heads, repeat, 1),
                outputs=out,
                inputs=into,
            )
        )
        outputs, inputs = out.stop, into.stop
    owner, order = torch.cat(owners).sort(stable=True)
    return Tiling(
        tiles=tuple(tiles),
        found=found_TH.masked_fill_(found_TH < 0, outputs).flatten(),
        shares=torch.cat(places)[order],
        offsets=torch.searchsorted(owner, torch.arange(kv_heads * tokens)),
    )


def join(blocks: Sequence[Block]) -> list[tuple[Block, ...]]:
    """Group blocks into tiles: in order of size, each joins the last tile if that costs less than a new one."""
    tiles: list[tuple[Block, ...]] = []
    for b in sorted(blocks, key=lambda b: b.size[1:]):
        if tiles and _cost((*tiles[-1], b)) < _cost(tiles[-1]) + _cost((b,)):
            tiles[-1] += (b,)
        else:
            tiles.append((b,))
    return tiles


def _cost(blocks: tuple[Block, ...]) -> int:
    n, longest, before = _size(blocks)
    return TILE_COST + n * longest * (before + longest)


def _size(blocks: tuple[Block, ...]) -> tuple[int, int, int]:
    """Return (n, L, P) of the tile that contains `blocks`."""
    longest, before = (max(b.size[i] for b in blocks) for i in (1, 2))
    return sum(b.size[0] for b in blocks), -(-longest // MULTIPLE) * MULTIPLE, -(-before // MULTIPLE) * MULTIPLE


def _table(blocks: tuple[Block, ...]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return own tokens [n, L], keys [n, S], the masks of real entries of each, and the visibility [n, L, S].

    Padding repeats an existing token.
    """
    n, longest, before = _size(blocks)
    own, own_real = torch.zeros(n, longest, dtype=torch.long), torch.zeros(n, longest, dtype=torch.bool)
    prefix, prefix_real = torch.zeros(n, before, dtype=torch.long), torch.zeros(n, before, dtype=torch.bool)
    row = 0
    for b in blocks:
        start = b.start
        known = torch.cat([torch.arange(*span) for span in b.prefix]) if b.prefix else None
        for length in b.lengths:
            own[row] = torch.arange(start, start + longest).clamp_(max=start + length - 1)
            own_real[row, :length] = True
            if known is not None:
                prefix[row, : len(known)] = known
                prefix_real[row, : len(known)] = True
            start += length
            row += 1
    causal = torch.ones(longest, longest, dtype=torch.bool).tril()
    seen = torch.cat([prefix_real[:, None].expand(-1, longest, -1), causal.expand(n, -1, -1)], dim=2)
    return own, own_real, torch.cat([prefix, own], dim=1), torch.cat([prefix_real, own_real], dim=1), seen


class TiledAttention(torch.autograd.Function):
    """Computes softmax(scale q k^T + bias) v per tile; keeps the probabilities for the backward pass."""

    @staticmethod
    def forward(ctx: Any, q_HTD: Tensor, k_KTD: Tensor, v_KTD: Tensor, plan: Tiling, scale: float) -> Tensor:
        """Return the attention [H, T, D] of queries [H, T, D] over keys and values [K, T, D], tile by tile."""
        heads, tokens, width = q_HTD.shape
        q, k, v = (x.reshape(-1, width) for x in (q_HTD, k_KTD, v_KTD))
        out, probabilities = _buffer(q, plan.tiles[-1].outputs.stop + 1), []
        for tile in plan.tiles:
            queries, keys = tile.take_queries(q, tile.queries), tile.take_keys(k)
            scores = torch.baddbmm(tile.bias, queries, keys.transpose(1, 2), alpha=scale)
            probabilities.append(torch.softmax(scores, dim=-1))
            torch.bmm(probabilities[-1], tile.take_keys(v), out=out[tile.outputs].view_as(queries))
        ctx.save_for_backward(q, k, v, *probabilities)
        ctx.plan, ctx.scale, ctx.shapes = plan, scale, (q_HTD.shape, k_KTD.shape)
        return out.index_select(0, plan.found).view(tokens, heads, width)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, k and v in their shapes, from the kept probabilities of each tile."""
        q, k, v, *probabilities = ctx.saved_tensors
        plan, (heads, tokens, width) = ctx.plan, ctx.shapes[0]
        grad = torch.cat([grads[0].reshape(-1, width), q.new_zeros(1, width)])
        d_q = _buffer(q, plan.tiles[-1].outputs.stop + 1)
        d_k, d_v = (q.new_empty(plan.tiles[-1].inputs.stop, width) for _ in range(2))
        for tile, p in zip(plan.tiles, probabilities, strict=True):
            queries, keys, values = tile.take_queries(q, tile.queries), tile.take_keys(k), tile.take_keys(v)
            g = tile.take_queries(grad, tile.grads)
            torch.bmm(p.transpose(1, 2), g, out=d_v[tile.inputs].view_as(values))
            d_scores = torch._softmax_backward_data(torch.bmm(g, values.transpose(1, 2)), p, -1, p.dtype)
            torch.bmm(d_scores, keys, out=d_q[tile.outputs].view_as(queries))
            torch.bmm(d_scores.transpose(1, 2), queries, out=d_k[tile.inputs].view_as(keys))
        d_q_THD = d_q.index_select(0, plan.found).mul_(ctx.scale).view(tokens, heads, width)
        d_k_KTD = _gather_shares(d_k, plan).mul_(ctx.scale).view(ctx.shapes[1])
        return d_q_THD.transpose(0, 1), d_k_KTD, _gather_shares(d_v, plan).view(ctx.shapes[1]), None, None


def _buffer(like: Tensor, rows: int) -> Tensor:
    """Return an uninitialised buffer of rows, followed by one row of zeros."""
    buffer = like.new_empty(rows, like.shape[-1])
    buffer[-1] = 0
    return buffer


def _gather_shares(shares: Tensor, plan: Tiling) -> Tensor:
    """Return each key's sum of its shares [K T, D]."""
    return torch.embedding_bag(shares, plan.shares, plan.offsets, False, 0)[0]
