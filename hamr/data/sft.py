"""Supervised batches: each sample's prompt once, with one or several of its references as completions."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from hamr.data.trajectories import action_of
from hamr.protocols import AnswerEncoder, PromptEncoder
from hamr.types import Aggregation, ServiceSample, TrainBatch, TrainGroup, TrainSequence

Turns = Literal["last", "all"]
TokenSpan = tuple[int, int]


def sft_batch(
    samples: Sequence[ServiceSample],
    encode: PromptEncoder,
    answer: AnswerEncoder,
    rng: random.Random,
    *,
    references: int = 1,
    turns: Turns = "last",
    aggregation: Aggregation = "token_mean",
) -> TrainBatch:
    """Return a batch with at most `references` distinct references per sample, drawn by `rng`. The prompt has no loss.

    With `turns="all"`, earlier agent turns of the dialogue also have loss, once per sample. Their tokens are computed
    anyway, since the prompt contains them. The prompt of the group then ends at the first agent turn.
    """
    groups = []
    for sample in samples:
        chosen = rng.sample(sample.references, min(references, len(sample.references)))
        prompt = encode(sample)
        spans = list(_agent_spans(sample, prompt, encode, answer)) if turns == "all" else []
        start = spans[0][0] if spans else len(prompt)
        sequences = []
        for index, reference in enumerate(chosen):
            target = answer(reference.action)
            mask = [False] * (len(prompt) - start) + [True] * len(target)
            for begin, end in spans if index == 0 else ():
                mask[begin - start : end - start] = [True] * (end - begin)
            sequences.append(TrainSequence(token_ids=(*prompt[start:], *target), mask=tuple(mask)))
        groups.append(TrainGroup(prompt_ids=prompt[:start], sequences=tuple(sequences)))
    return TrainBatch(groups=tuple(groups), loss="sft", aggregation=aggregation)


def _agent_spans(
    sample: ServiceSample, prompt: Sequence[int], encode: PromptEncoder, answer: AnswerEncoder
) -> Iterator[TokenSpan]:
    """Yield the token ranges of the agent turns in the prompt, including the end-of-sequence token.

    Only turns that the policy would generate in exactly this form are included. A turn is excluded if the chat template
    shows earlier turns differently (without their reasoning, or joined with a neighbour), and if it is no reference
    (`meta["not_references"]`).
    """
    for index, turn in enumerate(sample.history):
        if turn.role != "agent" or not index or index in sample.meta.get("not_references", ()):
            continue
        before, target = encode(replace(sample, history=sample.history[:index])), answer(action_of(turn))
        if tuple(prompt[: len(before) + len(target)]) == (*before, *target):
            yield len(before), len(before) + len(target)
