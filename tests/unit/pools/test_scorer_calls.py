"""Prefix-cache figures in a scorer's call record, on scripted engines."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hamr.config.pools import PoolConfig
from hamr.pools.chat_reply import ChatReply
from hamr.pools.scorer_openai import OpenAIScorer
from hamr.pools.scorer_written import REASK_TEMPERATURE
from hamr.pools.scorers import JudgeScorer, RerankerScorer
from hamr.rollout.vllm_requests import Classified, Completion
from hamr.types import Question, ScorerCall

QUESTION = Question(variables={})


class Prompt:
    """A question of ten tokens, three of thinking's opening, two of the verdict's."""

    labels, stop = {"yes": 1, "no": 2}, "</think>"
    template = SimpleNamespace(id="p@1", thinks=True)
    tokenizer = SimpleNamespace(encode=lambda text: [7] * len(text.split()))

    def question_ids(self, variables: Any) -> list[int]:
        return [5] * 10

    def thinking_ids(self) -> list[int]:
        return [6] * 3

    def verdict_ids(self, *, after_thinking: bool) -> list[int]:
        return [8] * 2

    def read(self, logprobs: dict[int, float]) -> SimpleNamespace:
        return SimpleNamespace(score=0.5, verdict="yes", probabilities={}, label_mass=1.0)


class Engine:
    """Finds eight tokens of a question's first request in its cache, all of a later one's."""

    def __init__(self) -> None:
        self.asked = 0

    def found(self, ids: Any) -> int:
        self.asked += 1
        return 8 if self.asked == 1 else len(ids)

    async def classify(self, ids: Any, labels: Any) -> Classified:
        return Classified({1: -0.1, 2: -2.0}, self.found(ids))

    async def complete(self, ids: Any, sampling: Any, **how: Any) -> Completion:
        return Completion("hm hm", (9, 9), "stop", self.found(ids))


async def call(kind: type, **config: Any) -> tuple[ScorerCall, Engine]:
    role = "judge" if kind is JudgeScorer else "reranker"
    pool = PoolConfig.model_validate({"role": role, "prompt": f"{role}.en"} | config)
    engine = Engine()
    (answer,) = await kind("p", pool, engine, Prompt(), "m").score([QUESTION])
    assert answer.score == 0.5
    return answer.call, engine


async def test_reranker_reports_cached_tokens_of_its_request() -> None:
    said, engine = await call(RerankerScorer)
    assert (said.prompt_tokens, said.cached_tokens, engine.asked) == (12, 8, 1)


@pytest.mark.parametrize(("thinking", "requests"), [(0, 1), (16, 2)])
async def test_judge_reports_cached_tokens_of_its_first_request_only(thinking: int, requests: int) -> None:
    said, engine = await call(JudgeScorer, thinking_tokens=thinking)
    assert (said.prompt_tokens, said.cached_tokens, engine.asked) == (15, 8, requests)


class RecordingEngine(Engine):
    async def complete(self, ids: Any, sampling: Any, **how: Any) -> Completion:
        self.sampled = (sampling.temperature, how["seed"])
        return await super().complete(ids, sampling, **how)


@pytest.mark.parametrize(("attempt", "sampled"), [(0, (0.0, 0)), (2, (REASK_TEMPERATURE, 2))])
async def test_retried_judge_samples_new_reasoning(attempt: int, sampled: tuple[float, int]) -> None:
    engine = RecordingEngine()
    pool = PoolConfig(role="judge", prompt="judge.en", thinking_tokens=16)
    await JudgeScorer("p", pool, engine, Prompt(), "m").score([replace(QUESTION, attempt=attempt)])
    assert engine.sampled == sampled


@pytest.mark.parametrize(
    ("usage", "found"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 30}}, 30),
        ({"prompt_tokens_details": {}}, 0),
        ({}, 0),
        ({"prompt_tokens_details": {"cached_tokens": -3}}, 0),
    ],
)
def test_endpoint_usage_with_cached_tokens_is_optional(usage: dict[str, Any], found: int) -> None:
    pool = PoolConfig(role="judge", prompt="judge.en", type="openai", model="m", endpoint="http://127.0.0.1:9/v1")
    counts = {"prompt_tokens": 40, "completion_tokens": 2, "total_tokens": 42}
    reply = ChatReply.model_validate({"model": "m", "choices": [{"message": {}}], "usage": counts | usage})
    said = OpenAIScorer("p", pool)._call("p@1", 0.0, reply)
    assert (said.prompt_tokens, said.cached_tokens) == (40, found)
