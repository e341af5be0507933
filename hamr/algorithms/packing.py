"""Cutting a batch into micro-batches by a token budget, and dealing them to the ranks of a trainer.

Everything here is about indices, so that results can be put back where they belong: a `Piece` is a group and some of
its sequences, a micro-batch is a tuple of pieces. A group that does not fit is cut, and its prompt computed again in
each part.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hamr.types import TrainGroup

Layout = Literal["shared_prompt", "packed", "padded"]


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Sequences `sequences` (indices) of group `group` (index), computed together behind one prompt."""

    group: int
    sequences: tuple[int, ...]


Microbatch = tuple[Piece, ...]


def tokens(group: TrainGroup, sequences: Sequence[int], layout: Layout) -> int:
    """Tokens that a forward pass over these sequences computes.

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
    """One tuple of micro-batches per rank: every sequence exactly once, the same number of micro-batches on every rank.

    No micro-batch costs more than `budget` tokens unless a single sequence alone does. The load is levelled: pieces go,
    largest first, to the emptiest micro-batch. A rank that would have nothing to do for a round gets an empty
    micro-batch (it still takes part in the collective operations). No groups: no micro-batches.
    """
    pieces = _pieces(groups, budget, ranks, layout)
    if not pieces:
        return tuple(() for _ in range(ranks))
    cost = {p: tokens(groups[p.group], p.sequences, layout) for p in pieces}
    order = sorted(pieces, key=lambda p: (-cost[p], p.group, p.sequences))
    rounds = max(1, -(-sum(cost.values()) // (budget * ranks)))
    while (bins := _deal(order, cost, rounds * ranks, budget)) is None:
        rounds += 1
    # Rank r takes bins r, r + ranks, ... of the bins sorted by load, so that in each round the loads are close.
    bins.sort(key=lambda b: -sum(cost[p] for p in b))
    return tuple(
        tuple(tuple(sorted(b, key=lambda p: (p.group, p.sequences))) for b in bins[rank::ranks])
        for rank in range(ranks)
    )


def _deal(order: Sequence[Piece], cost: dict[Piece, int], count: int, budget: int) -> list[list[Piece]] | None:
    """Pieces to `count` bins, each to the emptiest; None if a bin would pass the budget."""
    bins: list[list[Piece]] = [[] for _ in range(count)]
    loads = [0] * count
    for piece in order:
        emptiest = min(range(count), key=loads.__getitem__)
        if bins[emptiest] and loads[emptiest] + cost[piece] > budget:
            return None
        bins[emptiest].append(piece)
        loads[emptiest] += cost[piece]
    return bins


def _pieces(groups: Sequence[TrainGroup], budget: int, ranks: int, layout: Layout) -> list[Piece]:
    """Groups cut to the budget, then cut further until every rank has one (as far as there are sequences)."""
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
    """As few parts as the budget allows, of about equal cost; one sequence per part at the least."""
    count = len(group.sequences)
    for parts in range(1, count + 1):
        cuts = [round(i * count / parts) for i in range(parts + 1)]
        slices = [tuple(range(a, b)) for a, b in itertools.pairwise(cuts)]
        if parts == count or all(tokens(group, s, layout) <= budget for s in slices):
            return [Piece(group=index, sequences=s) for s in slices]
    return []


def split_minibatches(groups: Sequence[TrainGroup], count: int) -> tuple[tuple[TrainGroup, ...], ...]:
    """The batch in `count` parts for as many optimiser steps, in order; sizes in sequences differ by at most one.

    A group at a border is cut in two. With fewer sequences than `count` there is one part per sequence.
    """
    flat = [(g, s) for g in groups for s in g.sequences]
    count = min(count, len(flat))
    parts = []
    for i in range(count):
        chosen = flat[round(i * len(flat) / count) : round((i + 1) * len(flat) / count)]
        merged: list[TrainGroup] = []
        for source in dict.fromkeys(id(g) for g, _ in chosen):
            members = [(g, s) for g, s in chosen if id(g) == source]
            merged.append(TrainGroup(prompt_ids=members[0][0].prompt_ids, sequences=tuple(s for _, s in members)))
        parts.append(tuple(merged))
    return tuple(parts)
