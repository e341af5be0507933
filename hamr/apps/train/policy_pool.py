"""Adapter that lets the policy in training answer questions like a pool, through the rollout engines."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hamr.protocols import Ask, GenerationRequest, RolloutEngine, SamplingConfig
from hamr.types import Answer, Question, SampleKey

EncodeMessages = Callable[[Sequence[Mapping[str, Any]]], Sequence[int]]
"""Encoder of a conversation into token ids, including the generation prompt."""


def asked_policy(engine: RolloutEngine, encode: EncodeMessages, *, run: str, context: int, max_new_tokens: int) -> Ask:
    """Return a function that answers questions with a conversation, using the engines' current weights.

    As with a pool, an answer truncated at `max_new_tokens` is "unparsable" and carries its text as reasoning. A prompt
    that leaves no room in `context` is "unparsable" without text. A dead engine raises, because the run cannot continue
    without it.
    """
    numbers = itertools.count()

    async def ask(question: Question) -> Answer:
        prompt = tuple(encode(question.messages))
        room = min(question.max_new_tokens or max_new_tokens, context - len(prompt))
        if room < 1:
            return Answer(failure="unparsable", detail=f"{len(prompt)} tokens leave no room in a context of {context}")
        request = GenerationRequest(
            prompt_ids=prompt,
            keys=(SampleKey(run=run, step=0, prompt=question.affinity, sample=next(numbers)),),
            seeds=(question.seed,),
            sampling=SamplingConfig(temperature=question.temperature or 0.0, max_new_tokens=room),
        )
        [rollout] = [rollout async for rollout in engine.generate([request])]
        if rollout.finish_reason == "stop":
            return Answer(text=rollout.text)
        return Answer(failure="unparsable", reasoning=rollout.text, detail=f"ended by {rollout.finish_reason}")

    return ask
