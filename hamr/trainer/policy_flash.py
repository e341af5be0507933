"""Attention of a packed row with shared prefixes by torch's flash-attention for sequences of different lengths.

Two calls per layer: the tokens of a block attend to its prefix, all of it, and each stretch attends to itself,
causally. Their results are merged by the log-sum-exp of their scores. The backward pass gives both calls the merged
output and log-sum-exp, so each kernel recomputes its share of the whole softmax. `torch.nn.attention.varlen` calls the
same two operators, but has no backward pass for a log-sum-exp that is used. Shapes as in `policy_attention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hamr.trainer.policy_blocks import Block

NO_DROPOUT = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """One call: which tokens ask, which keys they see, and the sequences of both: where they end (int32, from 0 on) and
    the longest."""

    queries: Tensor
    keys: Tensor
    ends: tuple[Tensor, Tensor]
    longest: tuple[int, int]
    causal: bool


def parts_of(blocks: Sequence[Block], device: torch.device | str) -> tuple[Part, ...]:
    """Return the call within the stretches, and that of blocks to their prefixes if any has one."""
    own = [[*range(at, at + length)] for b in blocks for at, length in _stretches(b)]
    parts = [_part(own, own, True, device)]
    behind = [b for b in blocks if b.prefix]
    if behind:
        asking = [[*range(b.own.start, b.own.stop)] for b in behind]
        prefixes = [[t for begin, end in b.prefix for t in range(begin, end)] for b in behind]
        parts.append(_part(asking, prefixes, False, device))
    return tuple(parts)


def _stretches(b: Block) -> list[tuple[int, int]]:
    starts = [b.start + sum(b.lengths[:i]) for i in range(len(b.lengths))]
    return list(zip(starts, b.lengths, strict=True))


def _part(queries: list[list[int]], keys: list[list[int]], causal: bool, device: torch.device | str) -> Part:
    both = (queries, keys)
    ends = [torch.tensor([0, *map(len, rows)]).cumsum(0).to(device, torch.int32) for rows in both]
    indices = [torch.tensor([t for row in rows for t in row], device=device) for rows in both]
    longest = [max(map(len, rows)) for rows in both]
    return Part(
        queries=indices[0], keys=indices[1], ends=(ends[0], ends[1]), longest=(longest[0], longest[1]), causal=causal
    )


class FlashAttention(torch.autograd.Function):
    """query [T, H, D], key and value [T, K, D], parts, scale -> [T, H, D]; zero for tokens that no part has."""

    @staticmethod
    def forward(ctx: Any, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, parts: tuple[Part, ...], scale: float) -> Tensor:
        """Return the attention [T, H, D] of queries [T, H, D] over keys and values [T, K, D], as the parts say."""
        merged = torch.zeros_like(q_THD, dtype=torch.float32)
        total_TH = torch.full(q_THD.shape[:2], -torch.inf, dtype=torch.float32, device=q_THD.device)
        for part in parts:
            q, k, v = q_THD[part.queries], k_TKD[part.keys], v_TKD[part.keys]
            out, lse_HN, *_ = torch.ops.aten._flash_attention_forward(
                q, k, v, *part.ends, *part.longest, NO_DROPOUT, part.causal, False, scale=scale
            )
            lse_NH, before_NH = lse_HN.T, total_TH[part.queries]
            sum_NH = torch.logaddexp(before_NH, lse_NH)
            mine, others = (lse_NH - sum_NH).exp()[..., None], (before_NH - sum_NH).exp()[..., None]
            merged[part.queries] = others * merged[part.queries] + mine * out.float()
            total_TH[part.queries] = sum_NH
        result = merged.to(q_THD.dtype)
        ctx.save_for_backward(q_THD, k_TKD, v_TKD, result, total_TH)
        ctx.parts, ctx.scale = parts, scale
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, k and v in their shapes, summed over the parts in float32."""
        q_THD, k_TKD, v_TKD, result, total_TH = ctx.saved_tensors
        sums = [torch.zeros_like(x, dtype=torch.float32) for x in (q_THD, k_TKD, v_TKD)]
        unused = torch.zeros(2, dtype=torch.uint64, device=q_THD.device)  # the random state of dropout
        for part in ctx.parts:
            q, k, v = q_THD[part.queries], k_TKD[part.keys], v_TKD[part.keys]
            out, lse_HN = result[part.queries], total_TH[part.queries].T.contiguous()
            own = torch.ops.aten._flash_attention_backward(
                grads[0][part.queries].contiguous(), q, k, v, out, lse_HN, *part.ends, *part.longest, NO_DROPOUT,
                part.causal, unused, unused, scale=ctx.scale,
            )  # fmt: skip
            for total, grad, index in zip(sums, own, (part.queries, part.keys, part.keys), strict=True):
                total.index_add_(0, index, grad.float())
        dq, dk, dv = (total.to(q_THD.dtype) for total in sums)
        return dq, dk, dv, None, None
