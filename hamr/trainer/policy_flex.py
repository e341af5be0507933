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

from hamr.algorithms.packing import MOST_LEVELS
from hamr.trainer.policy_blocks import Block

PARTS = (2, MOST_LEVELS + 1)
"""Numbers of stretches in a prefix. Rows with fewer have empty ones: another number is compiled separately. The first
is enough for a common beginning and a prompt, the second for the turns of dialogues."""
COMPILED_ON = ("cuda",)
"""Device types with a fused kernel. Elsewhere torch's own dense computation runs, for tests."""
VARIANTS = 32
"""Compilations of one function before it fails, e.g. with and without gradients, or of models with other heads."""


def block_mask(blocks: Sequence[Block], tokens: int, device: torch.device | str) -> BlockMask:
    """Return the mask of a row of `tokens`. Filling behind the last block attends to itself, causally."""
    stretch, begins, ends = mask_tensors(blocks, tokens)
    # Copies, no views of a tensor [2, T]: its first size would get the symbol of any other size that is 2 at first.
    stretch_T = stretch.to(device, copy=True)
    parts = [(begin.to(device, copy=True), end.to(device, copy=True)) for begin, end in zip(begins, ends, strict=True)]

    def attends(_b: Tensor, _h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        seen = (stretch_T[q] == stretch_T[k]) & (k <= q)
        for begin_T, end_T in parts:
            seen = seen | ((begin_T[q] <= k) & (k < end_T[q]))
        return seen

    create = _for_device(create_block_mask, torch.device(device).type)
    with torch.no_grad():  # so that it is not compiled for both modes
        mask: BlockMask = create(attends, 1, None, tokens, tokens, device=str(device))
    return mask


def mask_tensors(blocks: Sequence[Block], tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the index of each token's stretch [T], and where the parts of its prefix begin and end [P, T],
    with P one of `PARTS`.

    >>> from hamr.trainer.policy_blocks import block
    >>> stretch, begins, ends = mask_tensors([block((), 0, (2,)), block([(0, 2)], 2, (1, 2))], 6)
    >>> stretch.tolist(), begins.tolist(), ends.tolist()
    ([0, 0, 1, 2, 2, 3], [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]], [[0, 0, 2, 2, 2, 0], [0, 0, 0, 0, 0, 0]])
    """
    lengths = [length for b in blocks for length in b.lengths]
    filling = tokens - sum(lengths)
    each = torch.tensor([*lengths, filling])
    most = max((len(b.prefix) for b in blocks), default=0)
    begins, ends = torch.zeros(2, next(p for p in PARTS if p >= most), tokens, dtype=torch.int32)
    for b in blocks:
        for i, (begin, end) in enumerate(b.prefix):
            begins[i, b.own], ends[i, b.own] = begin, end
    return torch.repeat_interleave(torch.arange(len(each), dtype=torch.int32), each), begins, ends


def attend(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scale: float) -> Tensor:
    """Compute attention: query [1, H, T, D], key and value [1, K, T, D] -> [1, T, H, D]."""
    call = _for_device(flex_attention, query.device.type)
    if query.device.type in COMPILED_ON:
        for x in (query, key, value):  # or else heads get the symbol of the mask's blocks if the first row has as many
            torch._dynamo.mark_static(x, [1, 3])
    grouped = query.shape[1] != key.shape[1]
    out: Tensor = call(query, key, value, block_mask=mask, scale=scale, enable_gqa=grouped)
    return out.transpose(1, 2)


def _for_device(function: Any, device: str) -> Any:
    return _compile(function) if device in COMPILED_ON else function


@cache
def _compile(function: Any) -> Any:
    """Compile for all lengths of at least 256 tokens (`policy_batch`).

    Too many variants are an error (`fullgraph`). Otherwise torch would compute the full matrix of scores instead.
    """
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, VARIANTS)
    return torch.compile(function, dynamic=True, fullgraph=True)
