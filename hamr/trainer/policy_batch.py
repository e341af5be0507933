"""Tensors of one micro-batch: input tokens, positions to read log-probabilities from, and their targets.

A completion's last token is never an input, because nothing is predicted from it. Its first token is predicted from the
prompt's last token, so in the shared layout one hidden state of the prompt serves all completions of the group.

Shape legend: B rows, T tokens of a row (B = 1 if sequences are packed), N completion tokens of the micro-batch, ordered
by piece, sequence and token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hamr.algorithms.packing import Layout, Microbatch, shared_prefixes
from hamr.trainer.policy_blocks import Block, block
from hamr.types import TrainGroup, TrainSequence

ALIKE = 0.6
"""Minimum length of a stretch, as a share of the longest, to be padded together with it."""

FEW_ROWS = 64
"""On a CPU a row is padded to a multiple of this. Matrix kernels are compiled for every new shape, which takes some
milliseconds each, a tenth of a short step."""

GPU_BLOCK, GPU_ROW = 128, 256
"""On a GPU a row has a multiple of the first and at least the second. FlexAttention's mask has blocks of 128 tokens. A
row of one block, or with a part of one, would be compiled separately."""


@dataclass(frozen=True, kw_only=True)
class PolicyBatch:
    """Tensors of a micro-batch.

    `read_N` are positions in the flattened [B * T] row(s) whose hidden state predicts `targets_N`. `owner_N` is the
    index of the token's sequence in the micro-batch, `lengths` the number of tokens of each sequence. `behaviour_N`
    contains the engine's log-probabilities, or None if any sequence lacks them. `mask_N` is all False in the
    placeholder for an empty micro-batch.
    """

    input_ids_BT: Tensor
    position_ids_BT: Tensor
    attention_mask_BT: Tensor | None
    blocks: tuple[Block, ...] | None
    read_N: Tensor
    targets_N: Tensor
    owner_N: Tensor
    advantages_N: Tensor
    mask_N: Tensor
    behaviour_N: Tensor | None
    lengths: tuple[int, ...]


_EMPTY = TrainGroup(prompt_ids=(0,), sequences=(TrainSequence(token_ids=(0,), mask=(False,), old_logprobs=(0.0,)),))


def build_batch(
    groups: Sequence[TrainGroup], microbatch: Microbatch, layout: Layout, device: torch.device | str = "cpu"
) -> PolicyBatch:
    """Build the tensors of the pieces of `groups` in `microbatch`.

    An empty micro-batch becomes one masked token, since a rank without work must still take part in collective
    operations. Raises ValueError for an empty prompt or completion, or if log-probabilities or a mask differ in length
    from the tokens.
    """
    chosen = [(groups[p.group].prompt_ids, [groups[p.group].sequences[i] for i in p.sequences]) for p in microbatch]
    if not chosen:
        chosen = [(_EMPTY.prompt_ids, list(_EMPTY.sequences))]
    for prompt, sequences in chosen:
        for s in sequences:
            _check(prompt, s)
    shape = {"shared_prompt": _shared_row, "packed": _packed_row, "padded": _padded_rows}[layout]
    flat = [s for _, sequences in chosen for s in sequences]
    lengths = tuple(len(s.token_ids) for s in flat)
    with_behaviour = any(s.old_logprobs for s in flat)
    unknown = (math.nan,)
    columns = dict(
        targets_N=torch.tensor([t for s in flat for t in s.token_ids]),
        owner_N=torch.repeat_interleave(torch.arange(len(flat)), torch.tensor(lengths)),
        advantages_N=torch.tensor([s.advantage for s in flat], dtype=torch.float32).repeat_interleave(
            torch.tensor(lengths)
        ),
        mask_N=torch.tensor([m for s in flat for m in (s.mask or (True,) * len(s.token_ids))]),
        behaviour_N=torch.tensor([x for s in flat for x in s.old_logprobs or unknown * len(s.token_ids)])
        if with_behaviour
        else None,
        **shape(chosen, device),
    )
    on_device = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in columns.items()}
    return PolicyBatch(lengths=lengths, **on_device)  # type: ignore[arg-type]


def _check(prompt: tuple[int, ...], sequence: TrainSequence) -> None:
    count = len(sequence.token_ids)
    if not prompt or not count:
        raise ValueError(f"prompt of {len(prompt)} and completion of {count} tokens: both need at least one")
    for name, values in (("old_logprobs", sequence.old_logprobs), ("mask", sequence.mask)):
        if values and len(values) != count:
            raise ValueError(f"{name} has {len(values)} entries for {count} tokens")


_Chosen = Sequence[tuple[tuple[int, ...], list[TrainSequence]]]


@dataclass
class _Row:
    """Row under construction: tokens, their positions, and the blocks that define the attention."""

    device: torch.device | str
    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)

    def add(self, prefix: Sequence[tuple[int, int]], stretches: Sequence[Sequence[int]]) -> list[int]:
        """Append stretches that continue `prefix`, in as many blocks as their lengths need. Return their starts.

        Much shorter stretches get a block of their own, because a block is padded to its longest stretch.
        """
        before = sum(end - begin for begin, end in prefix)
        starts = [0] * len(stretches)
        by_length = sorted((i for i, s in enumerate(stretches) if s), key=lambda i: -len(stretches[i]))
        while by_length:
            longest = len(stretches[by_length[0]])
            alike = [i for i in by_length if len(stretches[i]) >= ALIKE * longest]
            by_length = by_length[len(alike) :]
            alike.sort()
            lengths = [len(stretches[i]) for i in alike]
            self.blocks.append(block(prefix, len(self.ids), lengths, self.device))
            for i in alike:
                starts[i] = len(self.ids)
                self.ids += stretches[i]
                self.positions += range(before, before + len(stretches[i]))
        return starts

    def columns(self, read: list[int]) -> dict[str, object]:
        multiple, least = (FEW_ROWS, 0) if torch.device(self.device).type == "cpu" else (GPU_BLOCK, GPU_ROW)
        filling = max(-len(self.ids) % multiple, least - len(self.ids))
        self.ids += [0] * filling
        self.positions += [0] * filling
        return dict(
            input_ids_BT=torch.tensor([self.ids]),
            position_ids_BT=torch.tensor([self.positions]),
            attention_mask_BT=None,
            blocks=tuple(self.blocks),
            read_N=torch.tensor(read),
        )


def _shared_row(chosen: _Chosen, device: torch.device | str) -> dict[str, object]:
    """Build one row: what prompts have in common once, each prompt's rest once, then its completions' inputs.

    A single completion forms one stretch with its prompt. `read_N` and related tensors keep the given order.
    """
    row = _Row(device)
    read: dict[int, list[int]] = {}
    tree = shared_prefixes([prompt for prompt, _ in chosen])
    deepest = {i: at for at, node in enumerate(tree) for i in node.members}
    ranges: dict[int | None, tuple[tuple[int, int], ...]] = {None: ()}
    for parent in (None, *range(len(tree))):
        common = 0 if parent is None else tree[parent].end
        children = [at for at, node in enumerate(tree) if node.parent == parent]
        members = [i for i in range(len(chosen)) if deepest.get(i) == parent]
        alone = {i for i in members if len(chosen[i][1]) == 1}
        rests = [chosen[i][0][common:] for i in members]
        inputs = [[s.token_ids[:-1] for s in chosen[i][1]] for i in members]
        starts = row.add(
            ranges[parent],
            [
                *(chosen[tree[at].members[0]][0][common : tree[at].end] for at in children),
                *(rest + (own[0] if i in alone else ()) for i, rest, own in zip(members, rests, inputs, strict=True)),
            ],
        )
        for at, start in zip(children, starts, strict=False):
            ranges[at] = (*ranges[parent], (start, start + tree[at].end - common))
        for i, start, rest, own in zip(members, starts[len(children) :], rests, inputs, strict=True):
            end = start + len(rest)
            behind = [end] if i in alone else row.add((*ranges[parent], (start, end)), own)
            read[i] = [
                at for s, tokens in zip(behind, own, strict=True) for at in (end - 1, *range(s, s + len(tokens)))
            ]
    return row.columns([at for i in range(len(chosen)) for at in read[i]])


def _packed_row(chosen: _Chosen, device: torch.device | str) -> dict[str, object]:
    """Build one row in which each sequence has its own copy of the prompt."""
    row = _Row(device)
    both = [(len(prompt), prompt + s.token_ids[:-1]) for prompt, sequences in chosen for s in sequences]
    starts = row.add((), [tokens for _, tokens in both])
    return row.columns(
        [at for s, (prompt, tokens) in zip(starts, both, strict=True) for at in range(s + prompt - 1, s + len(tokens))]
    )


def _padded_rows(chosen: _Chosen, device: torch.device | str) -> dict[str, object]:
    """Build one row per sequence, padded on the right. Reference layout that every model supports."""
    rows = [(prompt, prompt + s.token_ids[:-1]) for prompt, sequences in chosen for s in sequences]
    width = max(len(row) for _, row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.long)
    read: list[int] = []
    for i, (prompt, row) in enumerate(rows):
        ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = 1
        read += range(i * width + len(prompt) - 1, i * width + len(row))
    return dict(
        input_ids_BT=ids,
        position_ids_BT=torch.arange(width).expand(len(rows), -1),
        attention_mask_BT=mask,
        blocks=None,
        read_N=torch.tensor(read),
    )
