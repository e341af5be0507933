"""The scorer behind an endpoint, against a small scripted server on the loopback interface."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from aiohttp import web

from hamr.config.pools import PoolConfig
from hamr.pools.client import PoolClient
from hamr.pools.scorer_openai import OpenAIScorer
from hamr.types import Answer, Question

pytestmark = [pytest.mark.integration, pytest.mark.timeout(100)]

KEY = "sk-very-secret"


class Endpoint:
    """Server that answers as `statement_b` says and keeps its requests."""

    def __init__(self) -> None:
        self.url = ""
        self.keys: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.room: int | None = None
        self.inside = self.refused = 0

    async def in_turn(self) -> web.Response:
        """Takes `room` requests at a time and refuses the others."""
        if self.inside >= (self.room or 0):
            self.refused += 1
            return web.json_response({"error": {"message": "slow down"}}, status=429, headers={"Retry-After": "0.05"})
        self.inside += 1
        await asyncio.sleep(0.02)
        self.inside -= 1
        return web.json_response(_completion([{"role": "assistant", "content": "Verdict: Yes"}]))

    async def complete(self, request: web.Request) -> web.Response:
        self.keys.append(request.headers.get("Authorization", ""))
        body = await request.json()
        self.bodies.append(body)
        told = body["messages"][-1]["content"].partition("<statement_b>")[2].partition("</statement_b>")[0].split()
        if self.room is not None:
            return await self.in_turn()
        match told:
            case ["status", code]:
                return web.json_response({"error": {"message": f"no, {KEY}"}}, status=int(code))
            case ["limited", *after]:
                headers = {"Retry-After": after[0]} if after else {}
                return web.json_response({"error": {"message": "slow down"}}, status=429, headers=headers)
            case ["sleep"]:
                await asyncio.sleep(30)
            case ["garbage"]:
                return web.Response(text="<html>", content_type="text/html")
            case ["empty"]:
                return web.json_response(_completion([]))
            case ["null"]:
                return web.json_response(_completion([None]))
            case ["soft"] if body.get("logprobs"):
                return web.json_response({"error": {"message": "logprobs is not supported here"}}, status=400)
            case ["plain", *words]:
                return web.json_response(_completion([{"role": "assistant", "content": " ".join(words)}]))
        tokens = ["They ", "agree", ".\n", "Verdict", ":", " Yes"]
        top = {" Yes": 0.5, " Part": 0.3, " No": 0.1}
        return web.json_response(
            _completion([{"role": "assistant", "content": "".join(tokens)}], [*tokens, "<|im_end|>"], top)
        )


def _completion(
    messages: Sequence[dict[str, str] | None], tokens: list[str] | None = None, top: dict[str, float] | None = None
) -> dict[str, Any]:
    likeliest = [{"token": t, "logprob": math.log(p), "bytes": None} for t, p in (top or {}).items()]
    content = [{"token": t, "logprob": -0.1, "bytes": None, "top_logprobs": likeliest} for t in tokens or []]
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "served-model",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": m, "logprobs": {"content": content} if tokens else None}
            for m in messages
        ],
        "usage": {"prompt_tokens": 100, "completion_tokens": 6, "total_tokens": 106},
    }


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    served = Endpoint()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", served.complete)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    served.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield served
    await runner.cleanup()


def section(url: str, **changes: Any) -> PoolConfig:
    return PoolConfig.model_validate(
        {"role": "judge", "prompt": "judge.en", "type": "openai", "endpoint": url, "model": "asked-model"}
        | {"thinking_tokens": 50, "price_per_1k_tokens": 2.0}
        | changes
    )


async def ask(config: PoolConfig, *told: str) -> list[Answer]:
    scorer = OpenAIScorer("judge", config)
    return await scorer.score(
        [Question(variables={"history": "", "statement_a": "Hello.", "statement_b": t}) for t in told]
    )


async def test_soft_score_is_returned_with_its_cost(endpoint: Endpoint) -> None:
    """0.5, 0.3, 0.1 of 0.9: (0.5 + 0.15) / 0.9; 106 tokens at 2 per thousand."""
    [answer] = await ask(section(endpoint.url), "whatever")
    assert answer.score == pytest.approx(0.65 / 0.9)
    assert answer.label_mass == pytest.approx(0.9)
    assert answer.call is not None
    assert (answer.call.model, answer.call.prompt_tokens, answer.call.output_tokens) == ("served-model", 100, 6)
    assert answer.call.cost == pytest.approx(0.212)
    [body] = endpoint.bodies
    assert (body["model"], body["logprobs"], body["top_logprobs"]) == ("asked-model", True, 20)
    assert body["max_tokens"] == 50 + 16


async def test_a_server_without_log_probabilities_gives_hard_scores(endpoint: Endpoint) -> None:
    part, mumbling = await ask(section(endpoint.url), "plain Part", "plain who knows")
    assert (part.score, part.verdict) == (0.5, "part")
    assert (mumbling.score, mumbling.failure) == (None, "unparsable")


@pytest.mark.parametrize(
    ("code", "failure"),
    [(400, "unparsable"), (413, "unparsable"), *((code, "unavailable") for code in (401, 404, 429, 500, 503))],
)
async def test_http_error_is_a_failure_without_secrets(
    endpoint: Endpoint, code: int, failure: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    with caplog.at_level(logging.INFO):
        bad, good = await ask(section(endpoint.url, api_key_env="JUDGE_KEY"), f"status {code}", "fine")
    assert (bad.score, bad.failure) == (None, failure), "who finds a request unfit is not away"
    assert f"(HTTP {code})" in bad.detail
    assert good.failure is None, "one question's error is its own"
    assert endpoint.keys == [f"Bearer {KEY}"] * 2, "one request each: retries are the pool's"
    assert KEY not in repr(bad) + repr(good) + caplog.text


async def test_invalid_replies_are_failures(endpoint: Endpoint) -> None:
    garbage, empty = await ask(section(endpoint.url), "garbage", "empty")
    assert (garbage.score, empty.score) == (None, None)
    assert (garbage.failure, empty.failure) == ("unparsable", "unparsable")
    assert "not a chat completion" in garbage.detail
    null, good = await ask(section(endpoint.url), "null", "fine")
    assert (null.failure, good.failure) == ("unparsable", None), "one question's reply is its own"


async def test_endpoint_without_log_probabilities_gives_hard_scores(endpoint: Endpoint) -> None:
    [refused] = await ask(section(endpoint.url), "soft")
    assert refused.failure == "unavailable" and "set pools.judge.logprobs=false" in refused.detail
    [hard] = await ask(section(endpoint.url, logprobs=False), "plain Part")
    assert (hard.score, "logprobs" in endpoint.bodies[-1]) == (0.5, False)


async def test_a_slow_server_is_a_timeout(endpoint: Endpoint) -> None:
    [answer] = await ask(section(endpoint.url, deadline_s=0.5), "sleep")
    assert (answer.score, answer.failure) == (None, "timeout")


async def test_unreachable_endpoint_is_unavailable() -> None:
    [answer] = await ask(section("http://127.0.0.1:9/v1"), "hello")
    assert (answer.score, answer.failure) == (None, "unavailable")
    assert answer.detail == "APIConnectionError; is the server of pools.judge.endpoint running?"


async def test_questions_of_one_call_are_asked_concurrently(endpoint: Endpoint) -> None:
    """One of sixteen concurrent questions hangs until the deadline and does not delay the other answers."""
    answers = await ask(section(endpoint.url, deadline_s=2.0), "sleep", *["fine"] * 15)
    assert [a.failure for a in answers] == ["timeout"] + [None] * 15


@pytest.mark.parametrize(("told", "seconds"), [("limited 7", 7.0), ("limited", 0.0), ("limited Tomorrow", 0.0)])
async def test_refusal_has_its_retry_after_time(endpoint: Endpoint, told: str, seconds: float) -> None:
    [answer] = await ask(section(endpoint.url), told)
    assert (answer.failure, answer.retry_in_s) == ("unavailable", seconds)
    assert answer.detail == "RateLimitError (HTTP 429): slow down"


async def test_written_answer_uses_the_stop_strings_of_the_question(endpoint: Endpoint) -> None:
    scorer = OpenAIScorer("judge", section(endpoint.url))
    messages = ({"role": "user", "content": "Hi."},)
    await scorer.score([Question(messages=messages, stop=("</answer>",)), Question(messages=messages)])
    stops = sorted((body.get("stop") for body in endpoint.bodies), key=str)
    assert stops == [None, ["</answer>"]]


async def test_two_pools_finish_at_a_rate_limited_endpoint(endpoint: Endpoint) -> None:
    """Forty concurrent questions to a service that accepts three: none is lost, and refusals are few, because both
    pools share one rate limiter.
    """
    endpoint.room = 3
    pools = [client(name, section(endpoint.url, batch_size=4)) for name in ("judge", "policy")]
    questions = [Question(variables={"history": "", "statement_a": "Hello.", "statement_b": str(i)}) for i in range(40)]
    answers = await asyncio.gather(*(pools[i % 2].ask(question) for i, question in enumerate(questions)))
    assert [a.score for a in answers] == [1.0] * 40
    assert 0 < endpoint.refused < 80
    for pool in pools:
        await pool.close()


class Handle:
    """A pool's deployment without Ray Serve: the scorer itself."""

    def __init__(self, scorer: OpenAIScorer) -> None:
        self.scorer = scorer

    def options(self, *, session_id: str) -> Handle:
        return self

    @property
    def score(self) -> Handle:
        return self

    def remote(self, questions: list[Question]) -> asyncio.Task[list[Answer]]:
        return asyncio.create_task(self.scorer.score(questions))


def client(name: str, config: PoolConfig) -> PoolClient:
    return PoolClient(name, config, "r", handle=Handle(OpenAIScorer(name, config)))
