"""Reading a verdict from an endpoint's reply: soft if log-probabilities allow it, strict otherwise."""

from __future__ import annotations

import asyncio
import copy
import json
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.config.pools import PoolConfig
from hamr.errors import ConfigError, VerdictUnparsable
from hamr.pools import scorer_openai
from hamr.pools.client import PoolClient
from hamr.pools.scorer_openai import OpenAIScorer, read_reply
from hamr.prompting.templates import PromptTemplate
from hamr.types import Answer, Question

JUDGE = PromptTemplate.load("judge.en")
RERANKER = PromptTemplate.load("reranker.en")
Top = dict[str, float]


def top(**probabilities: float) -> Top:
    """{token: log-probability}; an underscore is the space that tokens begin with."""
    return {token.replace("_", " "): math.log(p) for token, p in probabilities.items()}


def spoken(*tokens: str, last: Top) -> tuple[str, list[tuple[str, Top]]]:
    """A reply in tokens, all certain but the last."""
    return "".join(tokens), [(t, {t: -0.01}) for t in tokens[:-1]] + [(tokens[-1], last)]


def test_soft_score_is_read_at_the_verdict() -> None:
    """0.5, 0.3 and 0.1 of 0.9: (0.5 + 0.15) / 0.9."""
    text, positions = spoken("Both ", "agree.\n", "Verdict", ":", " Yes", last=top(_Yes=0.5, _Part=0.3, _No=0.1))
    reading = read_reply(text, positions, JUDGE)
    assert reading.score == pytest.approx(0.65 / 0.9)
    assert reading.label_mass == pytest.approx(0.9)
    assert reading.verdict == "yes"


@pytest.mark.parametrize(
    "before", [(), ("<think>", "Both say\n", "Verdict:", " No", "</think>")], ids=["bare", "thought"]
)
@pytest.mark.parametrize("behind", [(), ("<|im_end|>",)], ids=["", "end of sequence"])
def test_extra_tokens_outside_the_text_are_ignored(before: tuple[str, ...], behind: tuple[str, ...]) -> None:
    text, positions = spoken("Both agree.\n", "Verdict", ":", " Yes", last=top(_Yes=0.5, _Part=0.3, _No=0.1))
    listed = [*((t, top(_No=0.9)) for t in before), *positions, *((t, {t: -0.01}) for t in behind)]
    assert read_reply(text, listed, JUDGE).score == pytest.approx(0.65 / 0.9)


def test_labels_in_the_reasoning_are_not_the_verdict() -> None:
    text, positions = spoken(
        "Yes", ", and", " No", ".\n", "Verdict", ":", " No", last=top(_Yes=0.1, _Part=0.1, _No=0.8)
    )
    positions[0] = ("Yes", top(Yes=1.0))
    assert read_reply(text, positions, JUDGE).score == pytest.approx(0.15)


def test_labels_after_the_verdict_are_ignored() -> None:
    """The last "no" is part of "Nothing", a token of high probability."""
    tokens = ["Verdict", ":", " No", ".\n", "Nothing", " else."]
    positions = [(token, {token: -0.01}) for token in tokens]
    positions[2] = (" No", top(_Yes=0.2, _Part=0.1, _No=0.6))
    positions[4] = ("Nothing", top(No=0.9, Yes=0.05, Part=0.04))
    assert read_reply("".join(tokens), positions, JUDGE).score == pytest.approx(0.25 / 0.9)


def test_synonym_verdict_is_not_read_from_the_reasoning() -> None:
    text, positions = spoken("Yes", ", they agree.\n", "Verdict", ":", " consistent", last={" consistent": -0.01})
    positions[0] = ("Yes", top(Yes=0.9, Part=0.05, No=0.05))
    with pytest.raises(VerdictUnparsable, match="cannot be found among the tokens"):
        read_reply(text, positions, JUDGE)


def test_probabilities_of_label_spellings_are_summed() -> None:
    text, positions = spoken("yes", last=top(yes=0.4, Yes=0.2, _yes=0.1, no=0.1, No=0.1, maybe=1e-6))
    assert read_reply(text, positions, RERANKER).score == pytest.approx(0.7 / 0.9)


def test_negligible_missing_label_counts_as_zero() -> None:
    text, positions = spoken("Verdict:", " Yes", last=top(_Yes=0.9, _No=0.09, _Maybe=1e-5))
    assert read_reply(text, positions, JUDGE).score == pytest.approx(0.9 / 0.99, abs=1e-4)


def test_relevant_missing_label_is_unparsable() -> None:
    """The list ends at 0.05, so Part may have up to 0.05, which would change the score."""
    text, positions = spoken("Verdict:", " Yes", last=top(_Yes=0.6, _No=0.3, _Maybe=0.05))
    with pytest.raises(VerdictUnparsable, match="part not among the 3 likeliest"):
        read_reply(text, positions, JUDGE)


def test_labels_with_more_than_all_probability_are_unparsable() -> None:
    text, positions = spoken("Verdict:", " Yes", last=top(Yes=1.0, No=1.0, Part=1.0))
    with pytest.raises(VerdictUnparsable, match=r"the labels hold 3\.000 of the probability, which is above 1"):
        read_reply(text, positions, JUDGE)


def test_written_verdict_is_used_without_log_probabilities() -> None:
    assert read_reply("Similar.\nVerdict: Part", [], JUDGE).score == 0.5
    assert read_reply("no", [], RERANKER).score == 0.0
    assert read_reply("Verdict: No", [], JUDGE).verdict == "no"


@pytest.mark.parametrize("text", ["", "Verdict: perhaps", "Verdict: Yes\nor rather Verdict: dunno", "yes and no"])
def test_other_replies_are_unparsable(text: str) -> None:
    with pytest.raises(VerdictUnparsable):
        read_reply(text, [], JUDGE)


def test_a_level_that_the_template_lacks_is_unparsable() -> None:
    with pytest.raises(VerdictUnparsable):
        read_reply("part", [], RERANKER)


def test_tokens_that_do_not_spell_the_text_are_rejected() -> None:
    with pytest.raises(VerdictUnparsable, match="cannot be found among the tokens"):
        read_reply("Verdict: Yes", [("something", {}), (" else", top(_Yes=0.9))], JUDGE)


@pytest.mark.parametrize("parts", [("\\xf0\\x9f\\x91", "\\x8d"), ("\ufffd", "\ufffd")], ids=["escapes", "replaced"])
@pytest.mark.parametrize("between", [".\n", ", of course. "])
def test_parts_of_a_character_before_the_verdict_are_ignored(parts: tuple[str, ...], between: str) -> None:
    _, positions = spoken("Yes ", *parts, between, "Verdict", ":", " Yes", last=top(_Yes=0.5, _Part=0.3, _No=0.1))
    positions[0] = ("Yes ", top(Yes=1.0))
    assert read_reply(f"Yes 👍{between}Verdict: Yes", positions, JUDGE).score == pytest.approx(0.65 / 0.9)


def test_missing_api_key_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    config = PoolConfig(
        role="judge", prompt="judge.en", type="openai", endpoint="http://localhost:1/v1", api_key_env="JUDGE_KEY"
    )
    with pytest.raises(ConfigError, match=r"pools\.judge\.api_key_env: 'JUDGE_KEY'"):
        OpenAIScorer("judge", config)


# --- malformed replies ------------------------------------------------------------------------------------------------


def endpoint(reply: Callable[[httpx.Request], httpx.Response], **changes: Any) -> OpenAIScorer:
    """A judge whose endpoint answers with `reply`."""
    there = {"role": "judge", "prompt": "judge.en", "type": "openai", "endpoint": "http://localhost:1/v1"}
    config = PoolConfig.model_validate(there | changes)
    scorer = OpenAIScorer("judge", config)
    scorer._client = scorer._client.with_options(http_client=httpx.AsyncClient(transport=httpx.MockTransport(reply)))
    return scorer


async def answers_to(*bodies: bytes | dict[str, Any]) -> list[Answer]:
    """Answers of a written question and a scored one to each body, asked in one batch with a sound one at the end."""
    sound = chat("Verdict: Yes")
    served = [body for body in (*bodies, sound) for _ in range(2)]

    def reply(request: httpx.Request) -> httpx.Response:
        body = served[json.loads(request.content)["seed"]]
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return httpx.Response(200, content=content, headers={"Content-Type": "application/json"})

    scorer = endpoint(reply)
    variables = {"history": "", "statement_a": "Hello.", "statement_b": "Hi."}
    talk = ({"role": "user", "content": "Grade."},)
    answers = await scorer.score(
        [
            Question(messages=talk, seed=i) if i % 2 else Question(variables=variables, seed=i)
            for i in range(len(served))
        ]
    )
    scored, written = answers[-2:]
    assert (scored.score, written.text) == (1.0, "Verdict: Yes"), "a sound reply in the same batch is not affected"
    return answers[:-2]


def chat(content: Any, **changes: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}]} | changes


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"\xff\xfe",
        b"{" + b'"a":{' * 5000,
        b"[]",
        b'{"choices": []}',
        b'{"choices": [null]}',
        b'{"choices": [{"message": "Verdict: Yes"}]}',
        json.dumps(chat(5)).encode(),
        json.dumps(chat({"text": "Verdict: Yes"})).encode(),
        json.dumps(chat([5])).encode(),
    ],
    ids=lambda body: repr(body[:40]),
)
async def test_a_malformed_reply_is_unparsable_and_fails_no_other_question(body: bytes) -> None:
    for answer in await answers_to(body):
        assert (answer.score, answer.text, answer.failure) == (None, None, "unparsable")
        assert "not a chat completion" in answer.detail


SOUND = chat("Yes")
SOUND["choices"][0]["logprobs"] = {
    "content": [{"token": "Yes", "logprob": -0.1, "top_logprobs": [{"token": "Yes", "logprob": -0.1}]}]
}
FIRST = ("choices", 0)
TOP = (*FIRST, "logprobs", "content", 0, "top_logprobs")


def replace_at(path: tuple[str | int, ...], value: Any) -> bytes:
    """The sound reply with another value at `path`."""
    body: Any = {"root": copy.deepcopy(SOUND)}
    *parents, last = ("root", *path)
    node = body
    for step in parents:
        node = node[step]
    node[last] = value
    return json.dumps(body["root"]).encode()


number = st.booleans() | st.integers() | st.floats()
no_container = number | st.text()
malformed = (
    st.binary(max_size=40)
    | st.integers(0, len(json.dumps(SOUND)) - 1).map(lambda size: json.dumps(SOUND)[:size].encode())
    | st.builds(replace_at, st.sampled_from([(), FIRST[:1], FIRST, (*FIRST, "message"), TOP[:3]]), no_container)
    | st.builds(replace_at, st.sampled_from([TOP[:4], TOP[:5], TOP, (*TOP, 0)]), no_container)
    | st.builds(
        replace_at,
        st.sampled_from([(*FIRST, "message", "content"), (*TOP[:5], "token"), (*TOP, 0, "token")]),
        number | st.lists(no_container, min_size=1) | st.dictionaries(st.text(), number),
    )
    | st.builds(replace_at, st.just((*TOP, 0, "logprob")), st.none() | st.booleans() | st.text() | st.floats(1e-3))
)


@given(st.lists(malformed, min_size=1, max_size=8))
def test_any_malformed_reply_fails_only_its_own_question(bodies: list[bytes]) -> None:
    for answer in asyncio.run(answers_to(*bodies)):
        assert (answer.score, answer.text, answer.failure) == (None, None, "unparsable")


# --- details of failures ----------------------------------------------------------------------------------------------

SCORED = Question(variables={"history": "", "statement_a": "Hello.", "statement_b": "My card is 4111 1111 1111 1111."})
GRADED = Question(variables={"history": "Hi.", "response": "Hello.", "call": ""}, prompt="dialogue.en")


async def failure(reply: httpx.Response, question: Question = SCORED, **changes: Any) -> Answer:
    (answer,) = await endpoint(lambda _: reply, **changes).score([question])
    return answer


@pytest.mark.parametrize(("status", "name"), [(401, "AuthenticationError"), (404, "NotFoundError"), (400, "BadReq")])
async def test_http_error_has_the_reason_of_the_endpoint(status: int, name: str) -> None:
    said = (await failure(httpx.Response(status, json={"error": {"message": "No model\n`m`\x1b here"}}))).detail
    assert said.startswith(name) and said.endswith(f"(HTTP {status}): No model `m` here")
    long = await failure(httpx.Response(status, json={"error": {"message": "m" * 500}}))
    assert long.detail.endswith("m" * 120 + "...") and len(long.detail) < 180


async def test_error_with_status_200_is_shown_as_one() -> None:
    said = (await failure(httpx.Response(200, json={"error": {"message": "overloaded"}}))).detail
    assert said == "the endpoint's reply is not a chat completion: overloaded"


@pytest.mark.parametrize("status", [200, 400])
async def test_reason_has_neither_the_key_nor_the_question(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINE", "value-of-the-key")
    error = {"error": {"message": "no access for value-of-the-key"}}
    said = (await failure(httpx.Response(status, json=error), api_key_env="MINE")).detail
    assert "no access for [redacted]" in said and "value-of" not in said
    error = {"error": {"message": "invalid content 'My  card is 4111 1111 1111 1111.'"}}
    assert "4111" not in (await failure(httpx.Response(status, json=error))).detail


@pytest.mark.parametrize("question", [SCORED, GRADED], ids=["scored", "written"])
@pytest.mark.parametrize(
    ("message", "finish", "found"),
    [
        ({"refusal": "I cannot."}, "stop", "finish_reason='stop'), but it has refusal"),
        ({"reasoning_content": "Hm."}, "stop", "but it has reasoning_content"),
        ({"tool_calls": [{"function": {"name": "f"}}]}, "tool_calls", "'tool_calls'), but it has tool_calls"),
        ({}, "content_filter", "the reply has no text (finish_reason='content_filter')"),
    ],
)
async def test_empty_reply_names_what_it_has(
    question: Question, message: dict[str, Any], finish: str, found: str
) -> None:
    choice = {"message": {"role": "assistant", "content": None} | message, "finish_reason": finish}
    answer = await failure(httpx.Response(200, json={"choices": [choice]}), question)
    assert answer.failure == "unparsable" and found in answer.detail


async def test_verdict_cut_off_by_the_token_limit_names_the_limit() -> None:
    choice = {"message": {"content": "They agree in"}, "finish_reason": "length"}
    answer = await failure(httpx.Response(200, json={"choices": [choice]}), thinking_tokens=4)
    assert answer.detail == "cut off after 20 tokens; raise pools.judge.thinking_tokens"


async def test_verdict_within_unfinished_reasoning_is_not_used() -> None:
    text = "<think>\nMy first guess is\n\nVerdict: Yes\n\nBut wait, the reference says"
    choice = {"message": {"content": text}, "finish_reason": "length"}
    answer = await failure(httpx.Response(200, json={"choices": [choice]}), thinking_tokens=4)
    assert answer.failure == "unparsable" and "cut off after 20 tokens" in answer.detail


@pytest.mark.parametrize("question", [SCORED, GRADED], ids=["scored", "written"])
async def test_configured_max_completion_tokens_replaces_max_tokens(question: Question) -> None:
    bodies: list[dict[str, Any]] = []

    def reply(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(200, json=chat("Verdict: Yes"))

    await endpoint(reply, sampling_extra={"max_completion_tokens": 400}).score([question])
    await endpoint(reply).score([question])
    assert bodies[0]["max_completion_tokens"] == 400 and "max_tokens" not in bodies[0]
    assert "max_tokens" in bodies[1] and "max_completion_tokens" not in bodies[1]


async def test_text_parts_are_joined_and_reasoning_parts_are_not_the_answer() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "Verdict: No"}]}]
    scored, written = await answers_to(chat([*parts, {"type": "text", "text": "Verdict: "}, {"text": "Part"}]))
    assert (scored.score, written.text) == (0.5, "Verdict: Part")


async def test_lone_surrogate_fails_no_other_question_of_its_batch() -> None:
    broken, sound = await endpoint(lambda _: httpx.Response(200, json=chat("Yes"))).score(
        [Question(messages=({"role": "user", "content": text},)) for text in ("\ud83d", "Grade.")]
    )
    assert (broken.failure, broken.detail) == (
        "unparsable",
        "the question cannot be encoded as utf-8 (surrogates not allowed)",
    )
    assert sound.text == "Yes"


@pytest.mark.parametrize("logprob", [0.5, 1e300, math.inf, math.nan, "high"])
async def test_an_impossible_log_probability_is_unparsable(logprob: Any) -> None:
    likely = [{"token": "Yes", "logprob": logprob}, *({"token": t, "logprob": -3.0} for t in ("Part", "No"))]
    body = chat("Yes")
    body["choices"][0]["logprobs"] = {"content": [{"token": "Yes", "logprob": -0.1, "top_logprobs": likely}]}
    scored, _ = await answers_to(body)
    assert (scored.score, scored.failure) == (None, "unparsable")


@pytest.mark.parametrize("count", [math.nan, -5, 10**30, "many", None, [1]])
async def test_invalid_usage_counts_as_none_and_keeps_the_answer(count: Any) -> None:
    usage = {"prompt_tokens": count, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": count}}
    for answer in await answers_to(chat("Verdict: Yes", usage=usage, model=count)):
        assert answer.failure is None and answer.call is not None
        assert (answer.call.prompt_tokens, answer.call.cached_tokens, answer.call.output_tokens) == (0, 0, 7)


@pytest.mark.parametrize("error", [httpx.InvalidURL("no URL"), OSError(24, "Too many open files"), ValueError("x")])
async def test_any_error_of_the_client_fails_only_its_question(error: Exception) -> None:
    def reply(request: httpx.Request) -> httpx.Response:
        if "zz" in request.content.decode():
            raise error
        return httpx.Response(200, json=chat("Verdict: Yes"))

    questions = [Question(variables={"history": "", "statement_a": "Hi.", "statement_b": text}) for text in ("zz", "b")]
    failed, sound = await endpoint(reply).score(questions)
    assert failed.failure == "unavailable" and type(error).__name__ in failed.detail
    assert sound.score == 1.0


class Handle:
    """A pool's deployment without Ray Serve: the scorer itself."""

    def __init__(self, scorer: OpenAIScorer) -> None:
        self.remote = lambda questions: asyncio.create_task(scorer.score(questions))

    def options(self, *, session_id: str) -> SimpleNamespace:
        return SimpleNamespace(score=self)


async def test_missing_answer_fails_no_other_question_of_its_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scorer_openai, "ANSWER_SHARE", 0.01)

    async def reply(request: httpx.Request) -> httpx.Response:
        if "zz" in request.content.decode():
            await asyncio.sleep(60)
        return httpx.Response(200, json=chat("Verdict: Yes"))

    changes = {"type": "openai", "endpoint": "http://localhost:1/v1", "deadline_s": 60.0, "batch_wait_ms": 20}
    config = PoolConfig(role="judge", prompt="judge.en", **changes)
    scorer = OpenAIScorer("judge", config)
    scorer._client = scorer._client.with_options(http_client=httpx.AsyncClient(transport=httpx.MockTransport(reply)))
    pool = PoolClient("judge", config, "r", handle=Handle(scorer))
    texts = ("one", "zz", "three")
    questions = [Question(variables={"history": "", "statement_a": "Hi.", "statement_b": text}) for text in texts]
    await pool.ask(questions[0])  # imports libraries
    answers = await asyncio.gather(*map(pool.ask, questions))
    assert [(a.score, a.failure) for a in answers] == [(1.0, None), (None, "timeout"), (1.0, None)]
    await pool.close()
