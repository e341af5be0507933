"""Blocks of a packed row: stretches of tokens that continue the same prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Block:
    """Stretches of `lengths` (all > 0), laid end to end from `start`, each continuing the token ranges `prefix`.

    `pad` [B * L] reads the stretches into a padded block. Padding repeats an existing token; no real query attends to
    it, since it comes later. `real` finds the block's tokens in the padded block. Both are None if no padding is
    needed.
    """

    prefix: tuple[tuple[int, int], ...]
    start: int
    lengths: tuple[int, ...]
    pad: Tensor | None = None
    real: Tensor | None = None

    @property
    def own(self) -> slice:
        """Tokens of the block's stretches in the row."""
        return slice(self.start, self.start + sum(self.lengths))

    @property
    def size(self) -> tuple[int, int, int]:
        """Sizes (B, L, P)."""
        return len(self.lengths), max(self.lengths), sum(end - begin for begin, end in self.prefix)

    @property
    def scores(self) -> int:
        """Number of scores per head."""
        count, longest, before = self.size
        return count * longest * (before + longest)


def block(
    prefix: Sequence[tuple[int, int]], start: int, lengths: Sequence[int], device: torch.device | str = "cpu"
) -> Block:
    """Build a block with its index tensors.

    >>> b = block([(0, 4)], 10, (2, 1))
    >>> b.pad.tolist(), b.real.tolist(), b.size
    ([0, 1, 2, 2], [0, 1, 2], (2, 2, 4))
    """
    pad = real = None
    longest = max(lengths)
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
