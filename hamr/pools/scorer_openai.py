"""Scorer behind any OpenAI-compatible endpoint.

The model answers freely: optional reasoning, then the template's verdict prefix and a label. If the reply has
log-probabilities, the score is soft: the labels' probabilities at the token where the verdict begins. A server returns
only the k most likely tokens there; the probability of a missing label is unknown but at most that of the k-th. It is
counted as 0 only if that bound cannot change the score by more than `TOLERANCE`. Otherwise the answer is unparsable,
because guessing would bias the reward. Without log-probabilities the written verdict counts, parsed strictly; for an
endpoint that refuses log-probabilities set `logprobs: false`.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Literal

from pydantic import ValidationError

from hamr.config.pools import PoolConfig
from hamr.errors import BadInput, ConfigError, VerdictUnparsable, first_fault
from hamr.pools.chat_reply import ChatReply, Choice, ReplyUsage
from hamr.pools.scorer_base import Scorer, record_call
from hamr.pools.scorer_prompt import LabelReading, read_labels
from hamr.pools.scorer_written import NO_PROMPT, conversation, cut_off, temperature
from hamr.prompting.labels import LABEL_VALUES
from hamr.prompting.templates import PromptTemplate
from hamr.rewards.verdict import parse_verdict, verdict_place
from hamr.security.endpoints import check_url, look_up
from hamr.security.redaction import REDACTED, redact_text
from hamr.types import Answer, Question, ScorerCall
from hamr.types.rollouts import mean_logprob

TOP_LOGPROBS = 20
VERDICT_TOKENS = 16
"""Tokens for the verdict line after the reasoning."""
TOLERANCE = 0.01
OWN_FIELDS = frozenset(
    {
        "logprobs", "max_tokens", "messages", "model", "n", "response_format", "seed", "stop", "stream", "temperature",
        "top_k", "top_logprobs", "top_p",
    }
)  # fmt: skip
"""Fields of a request that hamr sets, from keys of the pool where there are some."""
ANSWER_SHARE = 0.9
"""Share of `deadline_s` in which the endpoint has to answer. A later answer is a `timeout`. In the rest it reaches the
pool before the pool's own deadline."""
MOST_REASON = 120
"""Maximum length of the endpoint's own message in a failure, in characters."""
ECHO = 24
"""A message that shares this number of characters in a row with the question is not shown: it may quote it."""
UNFIT = (400, 413, 422)
"""HTTP statuses for an invalid request."""
NO_KEY = "none"
"""Placeholder key if the configuration names none. The client requires a key, local servers do not."""


class OpenAIScorer(Scorer):
    """Client of an endpoint. Transport errors become failures of the one question; the pool decides on retries. An
    endpoint's outage is no reason to restart the replica."""

    def __init__(self, pool: str, config: PoolConfig) -> None:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        self.check_config(pool, config)
        check_url(f"pools.{pool}.endpoint", config.endpoint or "", resolve=look_up)
        self.pool, self.config = pool, config
        self.template = PromptTemplate.read(config.prompt) if config.prompt else None
        self._key = os.environ[config.api_key_env] if config.api_key_env else NO_KEY
        # The pool retries: it counts the retries and knows the deadline.
        self._client = AsyncOpenAI(
            base_url=config.endpoint,
            api_key=self._key,
            timeout=config.deadline_s,
            max_retries=0,
            # A redirect could send the key and the dialogue to an unchecked host.
            http_client=DefaultAsyncHttpxClient(follow_redirects=False),
        )

    @staticmethod
    def check_config(pool: str, config: PoolConfig) -> None:
        """Check the endpoint's address and key.

        Raises:
            BadInput: The address is not allowed. Only the replica resolves names, since its node may know other hosts.
            BadInput: `sampling_extra` contains a field that hamr sets itself.
            ConfigError: The key's environment variable is not set where the scorer runs.
        """
        for name in OWN_FIELDS.intersection(config.sampling_extra):
            value = config.sampling_extra[name]
            raise BadInput(f"pools.{pool}.sampling_extra.{name}", value, "hamr sets it; remove it")
        check_url(f"pools.{pool}.endpoint", config.endpoint or "")
        if config.api_key_env and not os.environ.get(config.api_key_env):
            raise ConfigError(
                f"pools.{pool}.api_key_env",
                config.api_key_env,
                "no such environment variable, or it is empty; export the endpoint's key under this name on every node",
            )

    async def score(self, questions: Sequence[Question]) -> list[Answer]:
        return list(await asyncio.gather(*(self._write(q) if q.is_written else self._answer(q) for q in questions)))

    async def _answer(self, question: Question) -> Answer:
        if self.template is None:
            return Answer(failure="unparsable", detail=NO_PROMPT)
        budget = self.config.thinking_tokens + VERDICT_TOKENS
        reply = await self._ask(
            self.template.id,
            messages=self.template.render(question.variables),
            **self._sampling(question, budget),
            seed=question.seed + question.attempt,
            **({"logprobs": True, "top_logprobs": TOP_LOGPROBS} if self.config.logprobs else {}),
        )
        if isinstance(reply, Answer):
            return reply
        choice, call = reply
        text = choice.message.text
        try:
            if choice.finish_reason == "length" and "<think>" in text[text.rfind("</think>") + 1 :]:
                raise VerdictUnparsable("a verdict within reasoning that does not end is not the last one")
            reading = read_reply(text, _positions(choice), self.template)
        except VerdictUnparsable as e:
            if choice.finish_reason == "length":
                return cut_off(call.output_tokens or budget, text, call, f"raise pools.{self.pool}.thinking_tokens")
            detail = str(e) if text.strip() else _why_empty(choice)
            return Answer(failure="unparsable", detail=detail, reasoning=text, call=call)
        return Answer(
            score=reading.score,
            verdict=reading.verdict,
            probabilities=reading.probabilities,
            label_mass=reading.label_mass,
            # The dimensions of a score are in the text, also where the server separates the reasoning from it.
            reasoning="\n".join(filter(None, (choice.message.reasoning_content, text))),
            call=call,
        )

    async def _write(self, question: Question) -> Answer:
        """Return the whole written answer to a question with its own prompt; `structured` enforces its schema."""
        messages, prompt = conversation(question)
        held: dict[str, Any] = {}
        if question.stop:
            held["stop"] = list(question.stop)
        if question.tools:
            held["tools"] = list(question.tools)
        if question.logprobs and self.config.logprobs:
            held["logprobs"] = True
        if self.config.structured and question.schema is not None:
            schema = {"name": "verdict", "schema": question.schema, "strict": True}
            held["response_format"] = {"type": "json_schema", "json_schema": schema}
        reply = await self._ask(
            prompt,
            messages=messages,
            **self._sampling(question, question.max_new_tokens or self.config.answer_tokens),
            seed=question.seed + question.attempt,
            **held,
        )
        if isinstance(reply, Answer):
            return reply
        choice, call = reply
        text = choice.message.text
        # A reward's own prompt asks for text. In a conversation an empty answer, or only tool calls, may be valid.
        if not question.messages and not text.strip() and choice.finish_reason != "length":
            return Answer(failure="unparsable", detail=_why_empty(choice), call=call)
        answer = (
            cut_off(call.output_tokens, text, call)
            if choice.finish_reason == "length"
            else Answer(
                text=text,
                tool_calls=choice.message.tool_requests,
                reasoning=choice.message.reasoning_content or "",
                call=call,
            )
        )
        return replace(answer, mean_logprob=_mean_logprob(choice)) if question.logprobs else answer

    def _sampling(self, question: Question, budget: int) -> dict[str, Any]:
        """Return the sampling fields of a request for at most `budget` tokens.

        `top_k` and extras are not fields of OpenAI's own API. Some endpoints accept only `max_completion_tokens`.
        """
        config = self.config
        extra = {**({"top_k": config.top_k} if config.top_k else {}), **config.sampling_extra}
        return {
            "temperature": temperature(question, config),
            **({"top_p": config.top_p} if config.top_p < 1 else {}),
            **({} if "max_completion_tokens" in extra else {"max_tokens": budget}),
            **({"extra_body": extra} if extra else {}),
        }

    async def _ask(self, prompt_version: str, **request: Any) -> tuple[Choice, ScorerCall] | Answer:
        """Return the endpoint's first choice and its cost, or the answer that describes the failure."""
        import openai

        started = time.monotonic()

        def charge(reply: ChatReply | None) -> ScorerCall:
            return self._call(prompt_version, started, reply)

        def error_line(error: Exception) -> str:
            """Return the error in one line, without the request, which contains the key and the customer's text."""
            status = getattr(error, "status_code", None)
            reason = self._reason(getattr(error, "body", None), request["messages"])
            if type(error) is openai.APIConnectionError:
                reason = f"; is the server of pools.{self.pool}.endpoint running?"
            elif isinstance(error, openai.NotFoundError):
                reason = reason or "; does `endpoint` end in /v1?"
            return f"{type(error).__name__}{f' (HTTP {status})' if status else ''}{reason}"

        try:
            # The client itself validates nothing; `ChatReply` does.
            async with asyncio.timeout(ANSWER_SHARE * self.config.deadline_s):
                raw = await self._client.chat.completions.with_raw_response.create(model=self.config.model, **request)
        except UnicodeEncodeError as e:
            detail = f"the question cannot be encoded as {e.encoding} ({e.reason})"
            return Answer(failure="unparsable", detail=detail, call=charge(None))
        except (openai.APITimeoutError, TimeoutError) as e:
            return Answer(failure="timeout", detail=error_line(e), call=charge(None))
        except openai.RateLimitError as e:
            return Answer(failure="unavailable", detail=error_line(e), call=charge(None), retry_in_s=_retry_after(e))
        except openai.APIError as e:
            refused = "logprobs" in request and isinstance(e, openai.BadRequestError) and "logprob" in str(e).lower()
            remedy = f"; no support for logprobs: set pools.{self.pool}.logprobs=false" if refused else ""
            # The endpoint is available but rejects this one request, e.g. because it is too long.
            unfit = not refused and getattr(e, "status_code", None) in UNFIT
            failure: Literal["unparsable", "unavailable"] = "unparsable" if unfit else "unavailable"
            return Answer(failure=failure, detail=error_line(e) + remedy, call=charge(None))
        except Exception as e:
            # The HTTP client passes some errors on, e.g. of the operating system. Raised here, one would fail all
            # questions of the batch.
            return Answer(failure="unavailable", detail=error_line(e), call=charge(None))
        try:
            reply = ChatReply.model_validate_json(raw.content)
        except ValidationError as e:
            reason = self._reason(_stated_error(raw.content), request["messages"])
            reason = reason or f" ({first_fault(e)}); does `endpoint` end in /v1?"
            detail = f"the endpoint's reply is not a chat completion{reason}"
            return Answer(failure="unparsable", detail=detail, call=charge(None))
        return reply.choices[0], charge(reply)

    def _reason(self, error: Any, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return `: MESSAGE` with the endpoint's own message; empty if it has none or may quote the question."""
        message = error.get("message") if isinstance(error, Mapping) else error
        if not isinstance(message, str):
            return ""
        line = " ".join("".join(c if c.isprintable() else " " for c in message).split())
        line = redact_text(line.replace(self._key, REDACTED) if self.config.api_key_env else line)
        line = line if len(line) <= MOST_REASON else line[:MOST_REASON] + "..."
        asked = " ".join(" ".join(str(m.get("content")) for m in messages).split())
        echoed = any(line[i : i + ECHO] in asked for i in range(len(line) - ECHO + 1))
        return f": {line}" if line and not echoed else ""

    def _call(self, prompt_version: str, started: float, reply: ChatReply | None) -> ScorerCall:
        usage = (reply.usage if reply else None) or ReplyUsage()
        cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None
        return record_call(
            self.pool,
            self.config,
            (reply.model if reply else None) or self.config.model,
            prompt_version,
            started,
            usage.prompt_tokens or 0,
            usage.completion_tokens or 0,
            cached or 0,
        )


def read_reply(
    text: str, positions: Sequence[tuple[str, Mapping[str, float]]], template: PromptTemplate
) -> LabelReading:
    """Return the score of a written answer.

    Without positions the written verdict is a hard score (label_mass 1).

    Args:
        positions: Each token's text with the likeliest {token: log-probability (nats)}.

    Raises:
        VerdictUnparsable: There is no verdict at the end, or a label that the server left out could matter.
    """
    verdict = parse_verdict(text)
    if verdict is None or verdict not in template.labels:
        raise VerdictUnparsable(f"no verdict at the end of {text[-120:]!r}")
    if not positions:
        return LabelReading(score=LABEL_VALUES[verdict], verdict=verdict, probabilities={verdict: 1.0}, label_mass=1.0)
    top = positions[_verdict_position(text, positions, template, verdict)][1]
    return _read_top(top, template)


def _verdict_position(
    text: str, positions: Sequence[tuple[str, Mapping[str, float]]], template: PromptTemplate, verdict: str
) -> int:
    """Return the index of the token in which the parsed label begins."""
    word = template.labels[verdict].token.strip()  # type: ignore[index]
    # Search only near the end: the word may also occur in the reasoning, or in text after the verdict.
    match = re.compile(re.escape(word), re.IGNORECASE).search(text, *verdict_place(text))
    spoken = "".join(token for token, _ in positions)
    if match:
        before, rest = text[: match.start()], text[match.start() :]
        # Servers list tokens that the text does not contain: reasoning before it, the end of sequence after it. Many
        # list a part of a character as an escape or "\ufffd"; then only what follows the last such character matches.
        for tail in (before, re.split(r"[^\x00-\x7f]", before)[-1]):
            if (start := spoken.rfind(tail + rest)) >= 0:
                ends = accumulate(len(token) for token, _ in positions)
                return bisect_right(list(ends), start + len(tail))
    raise VerdictUnparsable(f"the verdict in {text[-120:]!r} cannot be found among the tokens of the reply")


def _read_top(top: Mapping[str, float], template: PromptTemplate) -> LabelReading:
    """Read the labels among the likeliest tokens. Spellings that differ only in white space and case are summed."""
    mass: dict[str, float] = {}
    for label, written in template.labels.items():
        word = written.token.strip().lower()
        mass[label] = math.fsum(math.exp(lp) for token, lp in top.items() if token.strip().lower() == word)
    missing = [label for label, p in mass.items() if p == 0.0]
    found = math.fsum(mass.values())
    if found > 1.0 + TOLERANCE:
        raise VerdictUnparsable(f"the labels hold {found:.3f} of the probability, which is above 1")
    bound = len(missing) * math.exp(min(top.values(), default=0.0))
    if missing and bound > TOLERANCE * found:
        raise VerdictUnparsable(
            f"{', '.join(missing)} not among the {len(top)} likeliest tokens and may hold up to {bound:.3f}; "
            f"the other labels hold {found:.3f}"
        )
    return read_labels(mass)


def _positions(choice: Choice) -> list[tuple[str, dict[str, float]]]:
    """Return (token, {token: log-probability}) of each position; empty if the server returned none."""
    content = choice.logprobs.content if choice.logprobs else None
    if not content or not any(entry.top_logprobs for entry in content):
        return []
    return [(entry.token, {top.token: top.logprob for top in entry.top_logprobs or ()}) for entry in content]


def _mean_logprob(choice: Choice) -> float | None:
    """Return the mean over the tokens; None if the server left one out."""
    found = [entry.logprob for entry in (choice.logprobs.content if choice.logprobs else None) or ()]
    known = [min(value, 0.0) for value in found if value is not None]
    return mean_logprob(known) if len(known) == len(found) else None


def _why_empty(choice: Choice) -> str:
    """Describe an empty reply: its reason for the end, and the fields that it has in place of a text."""
    message = choice.message
    there = [name for name in ("refusal", "tool_calls", "reasoning_content") if getattr(message, name)]
    found = f", but it has {' and '.join(there)}" if there else ""
    return f"the reply has no text (finish_reason={(choice.finish_reason or '')[:40]!r}){found}"


def _stated_error(content: bytes) -> Any:
    """Return the `error` of a body that is not a chat completion; None if there is none."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return body.get("error") if isinstance(body, dict) else None


def _retry_after(error: Any) -> float:
    """Return the retry delay of a refusal (HTTP 429) in seconds; 0 if it names none, or names a date."""
    try:
        delay_s = float(error.response.headers.get("retry-after", ""))
    except ValueError:
        return 0.0
    return delay_s if math.isfinite(delay_s) and delay_s > 0 else 0.0
