"""Split a batch into micro-batches by a token budget, and distribute them over the ranks of a trainer.

All functions return indices, so that results can be mapped back: a `Piece` is a group and some of its sequences, a
micro-batch is a tuple of pieces. A group that does not fit is split, and its prompt is computed again in each part. In
the shared layout, the common prefix of the prompts in a micro-batch is also computed once: service prompts start with
the same policy and tools.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
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

SHORTEST_ROOT = 16
"""Minimum length of a shared prefix in tokens. Shorter ones are computed per prompt, because a root needs its own
segment."""


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
    while (bins := _deal(order, cost, rounds * ranks, budget)) is None:
        rounds += 1
    # Rank r takes bins r, r + ranks, ... of the bins sorted by load, so the loads in each round are similar.
    bins.sort(key=lambda b: -sum(cost[p].own for p in b))
    return tuple(
        tuple(tuple(sorted(b, key=lambda p: (p.group, p.sequences))) for b in bins[rank::ranks])
        for rank in range(ranks)
    )


@dataclass(frozen=True, kw_only=True)
class _Cost:
    """Tokens of this piece alone, and the root (number, length) that it shares with others."""

    own: int
    root: tuple[int, int]


def _costs(groups: Sequence[TrainGroup], pieces: Sequence[Piece], layout: Layout) -> dict[Piece, _Cost]:
    roots = {}
    if layout == "shared_prompt":
        families = shared_prefixes([g.prompt_ids for g in groups])
        roots = {member: (i, length) for i, (length, members) in enumerate(families) for member in members}
    return {
        p: _Cost(
            own=tokens(groups[p.group], p.sequences, layout) - roots.get(p.group, (0, 0))[1],
            root=roots.get(p.group, (0, 0)),
        )
        for p in pieces
    }


def _deal(order: Sequence[Piece], cost: dict[Piece, _Cost], count: int, budget: int) -> list[list[Piece]] | None:
    """Assign each piece to the one of `count` bins with the lowest resulting load. Return None if a bin would exceed
    the budget."""
    bins: list[list[Piece]] = [[] for _ in range(count)]
    loads = [0] * count
    roots: list[set[tuple[int, int]]] = [set() for _ in range(count)]
    for piece in order:
        own, root = cost[piece].own, cost[piece].root
        after = [load + own + (0 if root in held else root[1]) for load, held in zip(loads, roots, strict=True)]
        best = min(range(count), key=after.__getitem__)
        if bins[best] and after[best] > budget:
            return None
        bins[best].append(piece)
        loads[best] = after[best]
        roots[best].add(root)
    return bins


def shared_prefixes(prompts: Sequence[tuple[int, ...]]) -> list[tuple[int, list[int]]]:
    """Return families of prompts with a common prefix: (tokens in common, indices). Every index occurs once.

    A prompt joins the previous family (in token order) if that saves at least as many tokens as the shorter common
    prefix costs the other members. At least one token of every prompt stays outside the prefix.

    >>> shared_prefixes([tuple(range(40)), (7, 8), tuple(range(30)) + (99,)])
    [(30, [0, 2]), (0, [1])]
    """
    families: list[tuple[int, list[int]]] = []
    for i in sorted(range(len(prompts)), key=prompts.__getitem__):
        length = len(prompts[i]) - 1
        if families:
            common, members = families[-1]
            alike = _alike(prompts[members[-1]], prompts[i], min(common or len(prompts[members[0]]) - 1, length))
            if alike >= SHORTEST_ROOT and len(members) * alike >= (len(members) - 1) * common:
                families[-1] = (alike, [*members, i])
                continue
        families.append((0, [i]))
    return families


def _alike(a: tuple[int, ...], b: tuple[int, ...], most: int) -> int:
    return next((i for i in range(most) if a[i] != b[i]), most)


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
