"""Written answers of a local engine and of an endpoint, on scripted stand-ins."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from hamr.config.pools import PoolConfig
from hamr.errors import BadInput
from hamr.pools.scorer_openai import OpenAIScorer
from hamr.pools.scorer_written import REASK_TEMPERATURE, Writer
from hamr.pools.scorers import GraderScorer
from hamr.protocols import SamplingConfig
from hamr.rewards.written import WrittenPrompt
from hamr.types import Question

SCHEMA = {"type": "object"}


class Words:
    """A tokenizer whose tokens are words."""

    def chat_ids(self, messages: Sequence[Mapping[str, str]], *, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        return list(range(sum(len(m["content"].split()) for m in messages)))


class Engine:
    """Says `text` until the tokens are used up; keeps what it was asked."""

    def __init__(self, text: str, tokens: int = 3) -> None:
        self.text, self.tokens, self.asked = text, tokens, []

    async def complete(self, ids: Sequence[int], sampling: SamplingConfig, **how: Any) -> SimpleNamespace:
        self.asked.append((len(ids), sampling, how))
        cut = sampling.max_new_tokens < self.tokens
        said = min(self.tokens, sampling.max_new_tokens)
        reason = "length" if cut else "stop"
        logprobs = (-0.5,) * said if how["logprobs"] else ()
        return SimpleNamespace(
            text=self.text, token_ids=(1,) * said, finish_reason=reason, cached_tokens=2, logprobs=logprobs
        )


def grader(**changes: Any) -> PoolConfig:
    return PoolConfig.model_validate({"role": "grader", "max_context": 4000, "price_per_1k_tokens": 2.0} | changes)


def question(attempt: int = 0) -> Question:
    variables = {"history": "Customer: Hi.", "response": "Hello.", "call": ""}
    return Question(variables=variables, prompt="dialogue.en", schema=SCHEMA, attempt=attempt)


def scorer(engine: Engine, config: PoolConfig) -> GraderScorer:
    return GraderScorer(Writer("side", config, engine, Words(), "m@1"))  # type: ignore[arg-type]


async def test_answer_has_the_full_text_and_its_cost() -> None:
    engine = Engine("Fine. {}")
    (answer,) = await scorer(engine, grader(answer_tokens=50)).score([question()])
    assert (answer.text, answer.score, answer.failure) == ("Fine. {}", None, None)
    ((prompt_tokens, sampling, how),) = engine.asked
    assert (sampling.temperature, sampling.max_new_tokens) == (0.0, 50)
    assert how == {"seed": 0, "schema": None, "logprobs": False}
    assert answer.call is not None
    assert (answer.call.pool, answer.call.model, answer.call.output_tokens) == ("side", "m@1", 3)
    assert answer.call.prompt_version == WrittenPrompt.load("dialogue.en").id
    assert answer.call.cost == pytest.approx(2.0 * (prompt_tokens + 3) / 1000)


async def test_retry_samples_with_temperature_and_keeps_the_schema() -> None:
    engine = Engine("x")
    await scorer(engine, grader(structured=True)).score([question(attempt=2)])
    ((_, sampling, how),) = engine.asked
    assert sampling.temperature == REASK_TEMPERATURE
    assert how == {"seed": 2, "schema": SCHEMA, "logprobs": False}


async def test_truncated_answer_is_unparsable_even_with_a_verdict() -> None:
    engine = Engine('{"reason": "quoted", "score": 5}', tokens=60)
    (answer,) = await scorer(engine, grader(answer_tokens=50)).score([question()])
    assert (answer.text, answer.failure, answer.detail) == (None, "unparsable", "cut off after 50 tokens")


async def test_question_that_fills_the_context_is_not_sent() -> None:
    engine = Engine("x")
    (answer,) = await scorer(engine, grader(max_context=20)).score([question()])
    assert answer.failure == "unparsable"
    assert "max_context=20" in answer.detail
    assert engine.asked == []


async def test_answer_length_is_limited_by_the_context() -> None:
    engine = Engine("x")
    (full,) = await scorer(engine, grader(answer_tokens=10_000)).score([question()])
    ((prompt_tokens, sampling, _),) = engine.asked
    assert sampling.max_new_tokens == 4000 - prompt_tokens
    assert full.text == "x"


async def test_grader_requires_a_prompt_in_the_question() -> None:
    (answer,) = await scorer(Engine("x"), grader()).score([Question(variables={})])
    assert answer.failure == "unparsable"


# --- an endpoint -------------------------------------------------------------------------------


class Completions:
    def __init__(self, text: str | None, finish: str = "stop", logprobs: Sequence[Mapping[str, Any]] = ()) -> None:
        self.text, self.finish, self.logprobs, self.asked = text, finish, logprobs, []

    def reply(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(json.loads(request.content))
        choice = {"index": 0, "finish_reason": self.finish, "message": {"role": "assistant", "content": self.text}}
        if self.logprobs:
            choice["logprobs"] = {"content": self.logprobs}
        usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "served", "choices": [choice]}
        return httpx.Response(200, json=body | {"usage": usage})


def endpoint(completions: Completions, **changes: Any) -> OpenAIScorer:
    made = OpenAIScorer("side", grader(type="openai", endpoint="http://localhost:1/v1", **changes))
    transport = httpx.MockTransport(completions.reply)
    made._client = made._client.with_options(http_client=httpx.AsyncClient(transport=transport))
    return made


async def test_endpoint_returns_written_answers() -> None:
    completions = Completions("Fine. {}")
    (answer,) = await endpoint(completions, answer_tokens=40).score([question()])
    assert answer.text == "Fine. {}"
    assert answer.call is not None
    assert (answer.call.model, answer.call.prompt_tokens, answer.call.output_tokens) == ("served", 7, 5)
    assert answer.call.prompt_version == WrittenPrompt.load("dialogue.en").id
    (request,) = completions.asked
    assert (request["temperature"], request["max_tokens"]) == (0.0, 40)
    assert "response_format" not in request
    assert "<response>\nHello.\n</response>" in request["messages"][1]["content"]


async def test_answer_has_its_mean_logprob_where_it_is_asked_for() -> None:
    engine = Engine("Fine. {}")
    whole, cut = await scorer(engine, grader()).score(
        [replace(question(), logprobs=True), replace(question(), logprobs=True, max_new_tokens=1)]
    )
    assert (whole.mean_logprob, cut.mean_logprob, cut.failure) == (-0.5, -0.5, "unparsable")
    tokens = [{"token": "Fi", "logprob": -0.2}, {"token": "ne", "logprob": -0.4}]
    completions = Completions("Fine", logprobs=tokens)
    (answer,) = await endpoint(completions).score([replace(question(), logprobs=True)])
    assert answer.mean_logprob == pytest.approx(-0.3) and completions.asked[0]["logprobs"] is True
    (plain,) = await endpoint(completions, logprobs=False).score([replace(question(), logprobs=True)])
    assert "logprobs" not in completions.asked[1]
    gone = Completions("Fine", logprobs=[{"token": "Fi"}, *tokens[1:]])
    (answer,) = await endpoint(gone).score([replace(question(), logprobs=True)])
    assert answer.mean_logprob is None


async def test_endpoint_receives_the_schema_if_structured() -> None:
    completions = Completions("{}")
    await endpoint(completions, structured=True).score([question(attempt=1)])
    (request,) = completions.asked
    assert request["response_format"]["json_schema"]["schema"] == SCHEMA
    assert (request["temperature"], request["seed"]) == (REASK_TEMPERATURE, 1)


async def test_retried_verdict_uses_another_seed() -> None:
    completions = Completions("Verdict: Yes")
    made = endpoint(completions, role="judge", prompt="judge.en")
    asked = Question(variables={"history": "", "statement_a": "Hello.", "statement_b": "Hi."})
    answers = await made.score([asked, replace(asked, attempt=1)])
    assert [a.score for a in answers] == [1.0, 1.0]
    assert [(r["temperature"], r["seed"]) for r in completions.asked] == [(0.0, 0), (REASK_TEMPERATURE, 1)]


async def test_truncated_endpoint_answer_is_unparsable() -> None:
    (answer,) = await endpoint(Completions("{}", finish="length")).score([question()])
    assert (answer.text, answer.failure) == (None, "unparsable")
    talk = Question(messages=({"role": "user", "content": "Hi."},))
    (empty,) = await endpoint(Completions(None)).score([talk])
    assert empty.text == "", "in a conversation an empty answer is one, which its reader refuses"
    (without,) = await endpoint(Completions("x")).score([Question(variables={})])
    assert without.failure == "unparsable"


async def test_conversation_keeps_its_messages_and_sampling_options() -> None:
    engine = Engine("Certainly.")
    talk = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Can you help me?"})
    asked = Question(messages=talk, temperature=0.9, max_new_tokens=7, seed=40, attempt=1)
    (answer,) = await scorer(engine, grader(answer_tokens=50)).score([asked])
    assert answer.text == "Certainly."
    assert answer.call is not None
    assert answer.call.prompt_version == "chat"
    ((prompt_tokens, sampling, how),) = engine.asked
    assert (prompt_tokens, sampling.temperature, sampling.max_new_tokens, how["seed"]) == (6, 0.9, 7, 41)


SAMPLED = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "sampling_extra": {"min_p": 0.01}}


@pytest.mark.parametrize("attempt", [0, 1])
async def test_configured_sampling_reaches_engine_and_endpoint(attempt: int) -> None:
    engine, completions = Engine("x"), Completions("x")
    await scorer(engine, grader(**SAMPLED)).score([question(attempt=attempt)])
    await endpoint(completions, **SAMPLED).score([question(attempt=attempt)])
    ((_, sampling, _),) = engine.asked
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.extra) == (0.6, 0.95, 20, {"min_p": 0.01})
    (request,) = completions.asked
    assert {name: request[name] for name in ("temperature", "top_p", "top_k", "min_p")} == {
        "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.01
    }  # fmt: skip


async def test_endpoint_without_configured_sampling_gets_no_further_fields() -> None:
    completions = Completions("x")
    await endpoint(completions).score([question()])
    (request,) = completions.asked
    assert not {"top_p", "top_k", "extra_body"} & set(request)


def test_extra_field_that_hamr_sets_is_rejected() -> None:
    with pytest.raises(BadInput, match=r"pools\.side\.sampling_extra\.seed: 1: hamr sets it"):
        endpoint(Completions("x"), sampling_extra={"seed": 1})
