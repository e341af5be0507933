"""The policy in training, used as a pool."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from hamr.apps.train.dialogues import asked_policy
from hamr.errors import EngineDied
from hamr.types import Question, Rollout, SampleKey

HELLO = Question(messages=({"role": "user", "content": "hello you"},), affinity="d", seed=7, temperature=0.5)


class Engine:
    """Says `text`, or dies."""

    def __init__(self, text: str = "fine", reason: Any = "stop") -> None:
        self.text, self.reason, self.requests = text, reason, []

    async def generate(self, requests: Any) -> Any:
        if self.reason == "dead":
            raise EngineDied("gone")
        self.requests += requests
        for request in requests:
            yield Rollout(
                key=request.keys[0],
                prompt_ids=request.prompt_ids,
                token_ids=(1,),
                logprobs=(-0.1,),
                text=self.text,
                finish_reason=self.reason,
                versions=(),
            )


def asked(engine: Engine, context: int = 100) -> Any:
    def encode(messages: Any) -> list[int]:
        return [len(word) for message in messages for word in message["content"].split()]

    return asked_policy(engine, encode, run="r/sage", context=context, max_new_tokens=30)


async def test_conversation_becomes_one_generation_request() -> None:
    engine = Engine()
    ask = asked(engine)
    assert (await ask(HELLO)).text == "fine"
    await ask(dataclasses.replace(HELLO, max_new_tokens=5, temperature=None))
    first, second = engine.requests
    assert first.prompt_ids == (5, 3) and first.seeds == (7,)
    assert first.keys == (SampleKey(run="r/sage", step=0, prompt="d", sample=0),)
    assert (first.sampling.temperature, first.sampling.max_new_tokens) == (0.5, 30)
    assert second.keys[0].sample == 1
    assert (second.sampling.temperature, second.sampling.max_new_tokens) == (0.0, 5)


async def test_truncated_answer_is_unparsable_and_keeps_its_text() -> None:
    answer = await asked(Engine("half of it", "length"))(HELLO)
    assert (answer.text, answer.failure, answer.reasoning) == (None, "unparsable", "half of it")


@pytest.mark.parametrize(("context", "room"), [(32, 30), (31, 29), (3, 1)])
async def test_answer_length_is_limited_by_the_context(context: int, room: int) -> None:
    engine = Engine()
    await asked(engine, context)(HELLO)
    assert engine.requests[0].sampling.max_new_tokens == room


async def test_full_context_is_not_sent_to_the_engine() -> None:
    engine = Engine()
    answer = await asked(engine, 2)(HELLO)
    assert (answer.failure, answer.reasoning, engine.requests) == ("unparsable", "", [])
    assert "context of 2" in answer.detail


async def test_a_dead_engine_ends_the_run() -> None:
    with pytest.raises(EngineDied):
        await asked(Engine(reason="dead"))(HELLO)
