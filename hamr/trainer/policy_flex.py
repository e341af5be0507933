"""Attention of a packed row with shared prefixes as one FlexAttention call per layer.

A token attends to a key if both are in the same stretch and the key is not later, or if the key is in the prefix of the
token's block. `BlockMask` has this rule once per micro-batch; all layers share it. Shapes as in `policy_attention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from hamr.trainer.policy_blocks import Block


def block_mask(blocks: Sequence[Block], tokens: int, device: torch.device | str) -> BlockMask:
    """Return the mask of a row of `tokens`. Filling behind the last block attends to itself, causally."""
    stretch, begins, ends = mask_tensors(blocks, tokens)
    stretch_T, begins_PT, ends_PT = (x.to(device) for x in (stretch, begins, ends))

    def attends(_b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        own = (stretch_T[q] == stretch_T[k]) & (k <= q)
        for i in range(begins_PT.shape[0]):
            own = own | ((begins_PT[i][q] <= k) & (k < ends_PT[i][q]))
        return own

    create = _compile(create_block_mask) if torch.device(device).type == "cuda" else create_block_mask
    mask: BlockMask = create(attends, 1, None, tokens, tokens, device=str(device))
    return mask


def mask_tensors(blocks: Sequence[Block], tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the index of each token's stretch [T], and where the parts of its prefix begin and end [parts, T].

    >>> from hamr.trainer.policy_blocks import block
    >>> stretch, begins, ends = mask_tensors([block((), 0, (2,)), block([(0, 2)], 2, (1, 2))], 6)
    >>> stretch.tolist(), begins.tolist(), ends.tolist()
    ([0, 0, 1, 2, 2, 3], [[0, 0, 0, 0, 0, 0]], [[0, 0, 2, 2, 2, 0]])
    """
    lengths = [length for b in blocks for length in b.lengths]
    filling = tokens - sum(lengths)
    each = torch.tensor([*lengths, filling])
    parts = max(len(b.prefix) for b in blocks)
    begins, ends = torch.zeros(2, parts, tokens, dtype=torch.int32)
    for b in blocks:
        for i, (begin, end) in enumerate(b.prefix):
            begins[i, b.own], ends[i, b.own] = begin, end
    return torch.repeat_interleave(torch.arange(len(each), dtype=torch.int32), each), begins, ends


def attend(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scale: float) -> Tensor:
    """Compute attention: query [1, H, T, D], key and value [1, K, T, D] -> [1, T, H, D].

    Compiled once for all lengths on GPUs. Elsewhere torch's own dense computation runs, for tests.
    """
    call = _compile(flex_attention) if query.device.type == "cuda" else flex_attention
    grouped = query.shape[1] != key.shape[1]
    out: Tensor = call(query, key, value, block_mask=mask, scale=scale, enable_gqa=grouped)
    return out.transpose(1, 2)


@cache
def _compile(function: Any) -> Any:
    return torch.compile(function, dynamic=True)
