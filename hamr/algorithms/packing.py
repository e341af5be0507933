"""Split a batch into micro-batches by a token budget, and distribute them over the ranks of a trainer.

All functions return indices, so that results can be mapped back: a `Piece` is a group and some of its sequences, a
micro-batch is a tuple of pieces. A group that does not fit is split, and its prompt is computed again in each part. In
the shared layout, what prompts of a micro-batch have in common at their beginning is also computed once: service
prompts start with the same policy and tools, and a turn's prompt continues that of the turn before.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hamr.types import TrainGroup

Layout = Literal["shared_prompt", "packed", "padded"]


def padding_reason(config: Any) -> str | None:
    """Return the reason why a model supports padded rows only, by the attributes of its config.json, or None."""
    types, window = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    first = getattr(config, "max_window_layers", 0)  # Qwen2: layers before it have no window
    if not getattr(config, "use_sliding_window", True) or first >= getattr(config, "num_hidden_layers", math.inf):
        window = None
    layers = set(types or ["full_attention"])
    if layers != {"full_attention"} or (window and types is None):
        return f"its layers are {sorted(layers)}, sliding_window={window}"
    for key in ("attn_logit_softcapping", "attention_dropout"):
        if getattr(config, key, None):
            return f"it has {key}={getattr(config, key)}"
    return None


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Sequences `sequences` (indices) of group `group` (index), computed together after one prompt."""

    group: int
    sequences: tuple[int, ...]


Microbatch = tuple[Piece, ...]

PREFIX_BLOCK = 16
"""Prompts share a multiple of this many tokens. A shared stretch has overhead of its own, and attention pads it."""
MOST_LEVELS = 7
"""Largest number of shared stretches that a prompt continues. What is shared beyond that is computed again."""


@dataclass(frozen=True, kw_only=True)
class SharedPrefix:
    """Tokens `begin` to `end` of the prompts `members`, which are equal up to `end`. `parent` is the index of the
    shared prefix that ends at `begin`, or None if `begin` is 0."""

    parent: int | None
    begin: int
    end: int
    members: tuple[int, ...]


def tokens(group: TrainGroup, sequences: Sequence[int], layout: Layout) -> int:
    """Return the number of tokens that a forward pass over these sequences computes.

    shared_prompt: the prompt once; packed: the prompt per sequence; padded: every row as long as the longest.
    """
    lengths = [len(group.sequences[i].token_ids) for i in sequences]
    prompt = len(group.prompt_ids)
    if layout == "shared_prompt":
        return prompt + sum(lengths)
    if layout == "packed":
        return sum(prompt + n for n in lengths)
    return len(lengths) * (prompt + max(lengths, default=0))


def pack(
    groups: Sequence[TrainGroup], *, budget: int, ranks: int = 1, layout: Layout = "shared_prompt"
) -> tuple[tuple[Microbatch, ...], ...]:
    """Return one tuple of micro-batches per rank. Each sequence occurs once, and all ranks have the same number of
    micro-batches.

    No micro-batch computes more than `budget` tokens unless a single sequence does. Pieces are assigned in order of
    size, largest first, to the micro-batch with the lowest load. A rank without work in a round gets an empty
    micro-batch (it still takes part in the collective operations). Without groups there are no micro-batches.
    """
    pieces = _pieces(groups, budget, ranks, layout)
    if not pieces:
        return tuple(() for _ in range(ranks))
    cost = _costs(groups, pieces, layout)
    order = sorted(pieces, key=lambda p: (-cost[p].own, p.group, p.sequences))
    rounds = max(1, -(-sum(c.own for c in cost.values()) // (budget * ranks)))
    bins = _deal(order, cost, rounds * ranks, ranks, budget)
    # Rank r takes bins r, r + ranks, ... of the bins sorted by load, so the loads in each round are similar.
    bins.sort(key=lambda b: -b.load)
    return tuple(
        tuple(tuple(sorted(b.pieces, key=lambda p: (p.group, p.sequences))) for b in bins[rank::ranks])
        for rank in range(ranks)
    )


@dataclass(frozen=True, kw_only=True)
class _Cost:
    """Tokens of this piece alone, and those of each shared prefix that it continues.

    If they are padded, `rows` of `width` tokens; else these are 0.
    """

    own: int
    shared: dict[int, int]
    rows: int = 0
    width: int = 0


@dataclass(kw_only=True)
class _Bin:
    """A micro-batch under construction, which computes `load` tokens."""

    pieces: list[Piece] = field(default_factory=list)
    load: int = 0
    shared: set[int] = field(default_factory=set)
    rows: int = 0
    width: int = 0

    def load_with(self, cost: _Cost) -> int:
        """Return the load after the addition of a piece."""
        if cost.rows:
            return (self.rows + cost.rows) * max(self.width, cost.width)
        return self.load + cost.own + sum(length for i, length in cost.shared.items() if i not in self.shared)

    def add(self, piece: Piece, cost: _Cost) -> None:
        self.load = self.load_with(cost)
        self.pieces.append(piece)
        self.shared.update(cost.shared)
        self.rows, self.width = self.rows + cost.rows, max(self.width, cost.width)


def _costs(groups: Sequence[TrainGroup], pieces: Sequence[Piece], layout: Layout) -> dict[Piece, _Cost]:
    shared: list[dict[int, int]] = [{} for _ in groups]
    if layout == "shared_prompt":
        for i, prefix in enumerate(shared_prefixes([g.prompt_ids for g in groups])):
            for member in prefix.members:
                shared[member][i] = prefix.end - prefix.begin
    costs = {}
    for p in pieces:
        own = tokens(groups[p.group], p.sequences, layout) - sum(shared[p.group].values())
        rows = len(p.sequences) if layout == "padded" else 0
        costs[p] = _Cost(own=own, shared=shared[p.group], rows=rows, width=own // rows if rows else 0)
    return costs


def _deal(order: Sequence[Piece], cost: dict[Piece, _Cost], count: int, ranks: int, budget: int) -> list[_Bin]:
    """Assign each piece to the one of `count` bins with the lowest resulting load. Where that would exceed the budget,
    there is one more bin for each rank."""
    bins = [_Bin() for _ in range(count)]
    for piece in order:
        loads = [b.load_with(cost[piece]) for b in bins]
        best = min(range(len(bins)), key=loads.__getitem__)
        if bins[best].pieces and loads[best] > budget:
            best = len(bins)
            bins += [_Bin() for _ in range(ranks)]
        bins[best].add(piece, cost[piece])
    return bins


def shared_prefixes(prompts: Sequence[tuple[int, ...]]) -> list[SharedPrefix]:
    """Return the common beginnings of prompts as a tree, whose parents come before their children.

    Lengths are multiples of `PREFIX_BLOCK`, so that some of the prompts never need more tokens than all of them say. At
    least one token of every prompt stays outside, because its completions are predicted from it.

    >>> root, turns = shared_prefixes([(*range(40), 1), (*range(20), 2), (*range(40), 3)])
    >>> (root.begin, root.end, root.members), (turns.parent, turns.begin, turns.end, turns.members)
    ((0, 16, (0, 1, 2)), (0, 16, 32, (0, 2)))
    """
    found: list[SharedPrefix] = []
    continued: list[tuple[int | None, int, list[int]]] = [(None, 0, list(range(len(prompts))))]
    for _ in range(MOST_LEVELS):
        parents, continued = continued, []
        for parent, begin, members in parents:
            alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
            for i in members:
                if len(prompts[i]) > begin + PREFIX_BLOCK:
                    alike[prompts[i][begin : begin + PREFIX_BLOCK]].append(i)
            for several in alike.values():
                if len(several) > 1:
                    end = _common([prompts[i] for i in several])
                    continued.append((len(found), end, several))
                    found.append(SharedPrefix(parent=parent, begin=begin, end=end, members=tuple(several)))
    return found


def _common(prompts: Sequence[tuple[int, ...]]) -> int:
    """Return the number of tokens that all prompts begin with, in whole blocks, with one token of each left over."""
    first, last = min(prompts), max(prompts)  # all others are between them
    most = min(map(len, prompts)) - 1
    alike = next((i for i in range(most) if first[i] != last[i]), most)
    return alike // PREFIX_BLOCK * PREFIX_BLOCK


def _pieces(groups: Sequence[TrainGroup], budget: int, ranks: int, layout: Layout) -> list[Piece]:
    """Split groups by the budget, then further until every rank has one piece (as far as there are sequences)."""
    pieces = [p for i, g in enumerate(groups) for p in _cut_to_budget(i, g, budget, layout)]
    while 0 < len(pieces) < ranks:
        largest = max(pieces, key=lambda p: len(p.sequences))
        if len(largest.sequences) == 1:
            break
        pieces.remove(largest)
        half = len(largest.sequences) // 2
        pieces += [
            Piece(group=largest.group, sequences=largest.sequences[:half]),
            Piece(group=largest.group, sequences=largest.sequences[half:]),
        ]
    return pieces


def _cut_to_budget(index: int, group: TrainGroup, budget: int, layout: Layout) -> list[Piece]:
    """Split into as few parts as the budget allows, of similar cost, with at least one sequence per part."""
    count = len(group.sequences)
    for parts in range(1, count + 1):
        cuts = [round(i * count / parts) for i in range(parts + 1)]
        slices = [tuple(range(a, b)) for a, b in itertools.pairwise(cuts)]
        if parts == count or all(tokens(group, s, layout) <= budget for s in slices):
            return [Piece(group=index, sequences=s) for s in slices]
    return []


def split_minibatches(groups: Sequence[TrainGroup], count: int) -> tuple[tuple[TrainGroup, ...], ...]:
    """Split the batch into `count` parts for as many optimiser steps, in order. Sizes in sequences differ by at most
    one.

    A group at a border is split. With fewer sequences than `count` there is one part per sequence.
    """
    flat = [(i, s) for i, g in enumerate(groups) for s in g.sequences]
    count = min(count, len(flat))
    parts = []
    for part in range(count):
        chosen = flat[round(part * len(flat) / count) : round((part + 1) * len(flat) / count)]
        by_group = itertools.groupby(chosen, key=lambda own: own[0])
        parts.append(
            tuple(
                TrainGroup(prompt_ids=groups[i].prompt_ids, sequences=tuple(s for _, s in own)) for i, own in by_group
            )
        )
    return tuple(parts)
