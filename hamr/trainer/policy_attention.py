"""Attention over a packed row in which sequences share their common prefix.

The row is divided into blocks. A block contains stretches of tokens that all continue the same prefix (one or two
stretches earlier in the row). Each token attends to the prefix and causally within its own stretch. Prompts with a
common beginning form a block after it, and a group's completions form a block after its prompt. So each token attends
to exactly the tokens of its own sequence, and log-probabilities and gradients equal those of the plain padded batch.

Shape legend: T tokens of the row, H query heads, K key/value heads, R = H / K, D head width, B stretches of a block, L
the longest of them, P tokens of its prefix, S = P + L.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hamr.config.schema import AttentionKernel
from hamr.trainer import policy_flash, policy_flex
from hamr.trainer.policy_blocks import Block
from hamr.trainer.policy_tiles import TiledAttention, tiling

NAME = "hamr_shared_prompt"
"""Name under which the function is registered with transformers."""

DENSE_SCORES = 48 << 20
"""Maximum number of a row's scores that are kept as dense matrices on the CPU. Matmuls on bfloat16 tiles and one
softmax take a third of the time of the flash kernel's backward pass. Above this limit memory matters more."""


WITHOUT_EFFECT = ("position_ids", "cache_position", "use_cache", "output_attentions", "output_hidden_states")
"""Keywords of transformers' models that do not change what a token attends to. Any other with a value is refused."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedRow:
    """Blocks of one micro-batch, which tile its row of `tokens` except for filling at the end, and what kernels derive
    from them once for all layers."""

    blocks: tuple[Block, ...]
    kernel: AttentionKernel
    tokens: int
    device: torch.device

    @cached_property
    def flex_mask(self) -> Any:
        """FlexAttention's block mask of the row, made once for all layers."""
        return policy_flex.block_mask(self.blocks, self.tokens, self.device)

    @cached_property
    def flash_parts(self) -> tuple[policy_flash.Part, ...]:
        """Calls of flash-attention that make up the row's attention, made once for all layers."""
        return policy_flash.parts_of(self.blocks, self.device)


def shared_prompt_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    hamr_row: SharedRow | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """transformers' attention interface: query [1, H, T, D], key and value [1, K, T, D] -> [1, T, H, D].

    `hamr_row` is passed through the model's keyword arguments. Raises TypeError without it, because a model that drops
    unknown arguments would attend across sequences, and for keywords of the model that may change attention.
    """
    if hamr_row is None:
        raise TypeError("the model's attention dropped `hamr_row`; set trainer.attention=padded for this model")
    changed = [name for name, value in others.items() if value is not None and name not in WITHOUT_EFFECT]
    changed += ["dropout"] * (dropout > 0) + ["is_causal=False"] * (is_causal is False)
    if changed:
        raise TypeError(f"the model's attention uses {changed[0]}; set trainer.attention=padded for this model")
    scale = scaling if scaling is not None else 1.0 / math.sqrt(query.shape[-1])
    device = query.device.type
    if torch.is_autocast_enabled(device):
        # Rotary embeddings return queries and keys in float32; values come from an autocast matmul.
        query, key, value = (x.to(torch.get_autocast_dtype(device)) for x in (query, key, value))
    with torch.autocast(device, enabled=False):
        return _attend(query, key, value, hamr_row, scale), None


def _attend(query: Tensor, key: Tensor, value: Tensor, row: SharedRow, scale: float) -> Tensor:
    tokens, heads = query.shape[2], query.shape[1]
    if row.kernel == "flex":
        return policy_flex.attend(query, key, value, row.flex_mask, scale)
    if row.kernel == "flash":
        q_THD, k_TKD, v_TKD = (x[0].transpose(0, 1) for x in (query, key, value))
        out: Tensor = policy_flash.FlashAttention.apply(q_THD, k_TKD, v_TKD, row.flash_parts, scale)
        return out[None]
    if query.device.type == "cpu" and heads * sum(b.scores for b in row.blocks) <= DENSE_SCORES:
        plan = tiling(row.blocks, tokens, heads, key.shape[1], query.dtype)
        tiled: Tensor = TiledAttention.apply(query[0], key[0], value[0], plan, scale)
        return tiled[None]
    filling = tokens - row.blocks[-1].own.stop
    q_THD, k_TKD, v_TKD = (x[0].transpose(0, 1)[: tokens - filling] for x in (query, key, value))
    out_THD = torch.cat([_library_attention(q_THD, k_TKD, v_TKD, b, scale) for b in row.blocks])
    return F.pad(out_THD, (0, 0, 0, 0, 0, filling))[None]


def _library_attention(q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, b: Block, scale: float) -> Tensor:
    """Compute one block with torch's own kernels -> [own tokens, H, D]."""
    length, keys = b.size[1], b.size[1] + b.size[2]

    def with_prefix(x_TKD: Tensor) -> Tensor:
        before = [x_TKD[begin:end].expand(len(b.lengths), -1, -1, -1) for begin, end in b.prefix]
        return torch.cat([*before, _pad(x_TKD, b)], dim=1).transpose(1, 2)

    mask = (
        None if length == keys else torch.ones(length, keys, dtype=torch.bool, device=q_THD.device).tril(keys - length)
    )
    k_BKSD, v_BKSD = with_prefix(k_TKD), with_prefix(v_TKD)
    each = q_THD.shape[1] // k_TKD.shape[1]
    if each > 1 and mask is not None and q_THD.is_cuda:
        # With a mask, only the math kernel computes grouped queries on CUDA, in float32.
        k_BKSD, v_BKSD, each = k_BKSD.repeat_interleave(each, 1), v_BKSD.repeat_interleave(each, 1), 1
    out_BHLD = F.scaled_dot_product_attention(
        _pad(q_THD, b).transpose(1, 2),
        k_BKSD,
        v_BKSD,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=each > 1,
    )
    return _unpad(out_BHLD.transpose(1, 2), b)


def _pad(x_THD: Tensor, b: Block) -> Tensor:
    """Pad the block's own tokens -> [B, L, H, D]."""
    own = x_THD[b.own] if b.pad is None else x_THD[b.own].index_select(0, b.pad)
    return own.unflatten(0, b.size[:2])


def _unpad(x_BLHD: Tensor, b: Block) -> Tensor:
    """Inverse of `_pad` -> [own tokens, H, D]."""
    flat = x_BLHD.flatten(0, 1)
    return flat if b.real is None else flat.index_select(0, b.real)
