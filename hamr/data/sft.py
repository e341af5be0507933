"""Supervised batches: each sample's prompt once, with one or several of its references as completions."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from hamr.protocols import AnswerEncoder, PromptEncoder
from hamr.types import Action, Aggregation, Reply, ServiceSample, TrainBatch, TrainGroup, TrainSequence, Turn

Turns = Literal["last", "all"]
Span = tuple[int, int]


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
    """At most `references` distinct references per sample, drawn by `rng`; the prompt itself carries no loss.

    `turns="all"`: what the agent said earlier in the dialogue carries loss too, once a sample. The tokens are computed
    anyway, since the prompt holds them; the group's prompt then ends where the agent speaks for the first time.
    """
    groups = []
    for sample in samples:
        chosen = rng.sample(sample.references, min(references, len(sample.references)))
        prompt = encode(sample)
        spans = list(_agent_spans(sample, prompt, encode, answer)) if turns == "all" else []
        start = spans[0][0] if spans else len(prompt)
        sequences = []
        for index, reference in enumerate(chosen):
            said = answer(reference.action)
            mask = [False] * (len(prompt) - start) + [True] * len(said)
            for begin, end in spans if index == 0 else ():
                mask[begin - start : end - start] = [True] * (end - begin)
            sequences.append(TrainSequence(token_ids=(*prompt[start:], *said), mask=tuple(mask)))
        groups.append(TrainGroup(prompt_ids=prompt[:start], sequences=tuple(sequences)))
    return TrainBatch(groups=tuple(groups), loss="sft", aggregation=aggregation)


def _agent_spans(
    sample: ServiceSample, prompt: Sequence[int], encode: PromptEncoder, answer: AnswerEncoder
) -> Iterator[Span]:
    """Where in the prompt the agent's turns stand, end-of-sequence token included.

    Only those that the policy would have to utter just so at that point: a chat template that shows an earlier turn in
    another way than it is generated (without its reasoning, joined with its neighbour) leaves that turn out.
    """
    for index, turn in enumerate(sample.history):
        action = _action(turn)
        if action is None or not index:
            continue
        before, said = encode(replace(sample, history=sample.history[:index])), answer(action)
        if tuple(prompt[: len(before) + len(said)]) == (*before, *said):
            yield len(before), len(before) + len(said)


def _action(turn: Turn) -> Action | None:
    if turn.role != "agent":
        return None
    return turn.tool_call or Reply(content=turn.content)
