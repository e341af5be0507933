"""A scorer behind any OpenAI-compatible endpoint.

The model answers freely (reasoning if it wants, then the template's verdict prefix and a label). With log-probabilities
in the reply, the score is soft: the labels' probabilities at the token where the verdict begins. A server returns only
the k most likely tokens there; a label that is not among them has *some* probability, at most that of the k-th. It is
counted as 0 only when that bound cannot move the score by more than `TOLERANCE`; otherwise the answer is unparsable,
because guessing would bias the reward. Without log-probabilities the written verdict counts, read strictly; a pool
whose endpoint refuses them says `logprobs: false`.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from hamr.config.pools import PoolConfig
from hamr.errors import ConfigError, VerdictUnparsable
from hamr.pools.scorer_call import bill
from hamr.pools.scorer_prompt import LabelReading, read_labels
from hamr.pools.scorer_written import NO_PROMPT, conversation, cut_off, longest, temperature
from hamr.prompting.labels import LABEL_VALUES
from hamr.prompting.templates import PromptTemplate
from hamr.rewards.verdict import parse_verdict, verdict_place
from hamr.security.endpoints import check_url, look_up
from hamr.types import Answer, Question, ScorerCall

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletion

TOP_LOGPROBS = 20
VERDICT_TOKENS = 16
"""Room for the verdict's line after the reasoning."""
TOLERANCE = 0.01
UNFIT = (400, 413, 422)
"""HTTP statuses of a request that the endpoint takes for wrong in itself."""
NO_KEY = "none"
"""What is sent as a key where the configuration names none: the client insists on one, local servers do not."""


class OpenAIScorer:
    """Asks an endpoint. Errors of the transport become failures of the one question; the pool decides on retries."""

    def __init__(self, pool: str, config: PoolConfig) -> None:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        self.check_config(pool, config)
        check_url(f"pools.{pool}.endpoint", config.endpoint or "", resolve=look_up)
        self.pool, self.config = pool, config
        self.template = PromptTemplate.load(config.prompt) if config.prompt else None
        key = os.environ[config.api_key_env] if config.api_key_env else NO_KEY
        # Retries belong to the pool: it counts them and knows the deadline.
        self._client = AsyncOpenAI(
            base_url=config.endpoint,
            api_key=key,
            timeout=config.deadline_s,
            max_retries=0,
            # A redirect would lead the key and the dialogue to a host that was not checked.
            http_client=DefaultAsyncHttpxClient(follow_redirects=False),
        )

    @staticmethod
    def check_config(pool: str, config: PoolConfig) -> None:
        """Raises BadInput when the endpoint's address is not allowed (a name is looked up by the replica only: its node
        may know others), ConfigError when the key's variable is not set where the scorer runs."""
        check_url(f"pools.{pool}.endpoint", config.endpoint or "")
        if config.api_key_env and not os.environ.get(config.api_key_env):
            raise ConfigError(
                f"pools.{pool}.api_key_env",
                config.api_key_env,
                "no such environment variable, or it is empty; export the endpoint's key under this name on every node",
            )

    async def score(self, questions: Sequence[Question]) -> list[Answer]:
        return list(await asyncio.gather(*map(self._one, questions)))

    async def _one(self, question: Question) -> Answer:
        """A reply that lacks what every reply has is the failure of its own question, not of those beside it."""
        try:
            return await (self._write(question) if question.written else self._answer(question))
        except (AttributeError, LookupError, TypeError) as e:
            return Answer(failure="unparsable", detail=f"the endpoint's reply is malformed ({type(e).__name__}: {e})")

    async def check(self) -> None:
        """An endpoint's outages are typed failures of its questions; restarting a replica would not cure them."""

    def close(self) -> None:
        """Connections end with the process."""

    async def _answer(self, question: Question) -> Answer:
        if self.template is None:
            return Answer(failure="unparsable", detail=NO_PROMPT)
        reply = await self._ask(
            self.template.id,
            messages=self.template.render(question.variables),
            temperature=temperature(question),
            max_tokens=self.config.thinking_tokens + VERDICT_TOKENS,
            seed=question.seed + question.attempt,
            **({"logprobs": True, "top_logprobs": TOP_LOGPROBS} if self.config.logprobs else {}),
        )
        if isinstance(reply, Answer):
            return reply
        choice, call = reply
        text = choice.message.content or ""
        try:
            reading = read_reply(text, _positions(choice), self.template)
        except VerdictUnparsable as e:
            return Answer(failure="unparsable", detail=str(e), reasoning=text, call=call)
        return Answer(
            score=reading.score,
            verdict=reading.verdict,
            probabilities=reading.probabilities,
            label_mass=reading.label_mass,
            reasoning=getattr(choice.message, "reasoning_content", None) or text,
            call=call,
        )

    async def _write(self, question: Question) -> Answer:
        """The whole written answer to a question that brings its own prompt; held to its schema with `structured`."""
        messages, prompt = conversation(question)
        held: dict[str, Any] = {}
        if question.stop:
            held["stop"] = list(question.stop)
        if self.config.structured and question.schema is not None:
            schema = {"name": "verdict", "schema": question.schema, "strict": True}
            held["response_format"] = {"type": "json_schema", "json_schema": schema}
        reply = await self._ask(
            prompt,
            messages=messages,
            temperature=temperature(question),
            max_tokens=longest(question, self.config.answer_tokens),
            seed=question.seed + question.attempt,
            **held,
        )
        if isinstance(reply, Answer):
            return reply
        choice, call = reply
        text = choice.message.content or ""
        return (
            cut_off(call.output_tokens, text, call)
            if choice.finish_reason == "length"
            else Answer(text=text, reasoning=getattr(choice.message, "reasoning_content", None) or "", call=call)
        )

    async def _ask(self, prompt_version: str, **request: Any) -> tuple[Any, ScorerCall] | Answer:
        """The endpoint's first choice and its bill, or the answer that says what failed."""
        import openai
        from openai.types.chat import ChatCompletion

        started = time.monotonic()

        def billed(reply: ChatCompletion | None) -> ScorerCall:
            return self._call(prompt_version, started, reply)

        try:
            reply = await self._client.chat.completions.create(model=self.config.model, **request)
        except openai.APITimeoutError as e:
            return Answer(failure="timeout", detail=_error_line(e), call=billed(None))
        except openai.RateLimitError as e:
            return Answer(failure="unavailable", detail=_error_line(e), call=billed(None), retry_in_s=_retry_after(e))
        except openai.APIError as e:
            refused = "logprobs" in request and isinstance(e, openai.BadRequestError) and "logprob" in str(e).lower()
            remedy = f"; it takes no logprobs: set pools.{self.pool}.logprobs=false" if refused else ""
            # Nobody is away who says that this one request will not do, a too long one for example.
            unfit = not refused and getattr(e, "status_code", None) in UNFIT
            failure: Literal["unparsable", "unavailable"] = "unparsable" if unfit else "unavailable"
            return Answer(failure=failure, detail=_error_line(e) + remedy, call=billed(None))
        if not isinstance(reply, ChatCompletion) or not reply.choices:
            detail = "the endpoint's reply is no chat completion; does `endpoint` end in /v1?"
            return Answer(failure="unparsable", detail=detail, call=billed(None))
        return reply.choices[0], billed(reply)

    def _call(self, prompt_version: str, started: float, reply: ChatCompletion | None) -> ScorerCall:
        usage = reply.usage if reply else None
        asked, said = (usage.prompt_tokens, usage.completion_tokens) if usage else (0, 0)
        details = usage.prompt_tokens_details if usage else None
        model = (reply.model if reply else "") or self.config.model
        cached = (details.cached_tokens or 0) if details else 0
        return bill(self.pool, self.config, model, prompt_version, started, asked, said, cached)


def read_reply(
    text: str, positions: Sequence[tuple[str, Mapping[str, float]]], template: PromptTemplate
) -> LabelReading:
    """The score of a written answer. `positions`: each token's text with the likeliest {token: log-probability (nats)}.

    Without positions the written verdict is a hard score (label_mass 1). Raises VerdictUnparsable when there is no
    verdict at the end, or when a label that the server left out could matter.
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
    """Index of the token in which the label that was read begins."""
    word = template.labels[verdict].token.strip()  # type: ignore[index]
    # Not anywhere: the word may stand in the reasoning, and in what the model adds behind its verdict.
    said = re.compile(re.escape(word), re.IGNORECASE).search(text, *verdict_place(text))
    # Servers list tokens that the text does not have: a thought before it, the end of the sequence behind it.
    spoken = "".join(token for token, _ in positions)
    start = -spoken.rfind(text)
    found = None
    for index, (token, _) in enumerate(positions):
        end = start + len(token)
        if said and start <= said.start() < end:
            found = index
        start = end
    if found is None or text not in spoken:
        raise VerdictUnparsable(f"the verdict in {text[-120:]!r} cannot be found among the tokens of the reply")
    return found


def _read_top(top: Mapping[str, float], template: PromptTemplate) -> LabelReading:
    """Labels among the likeliest tokens; a label counts in every spelling that differs only by white space and case."""
    mass: dict[str, float] = {}
    for label, said in template.labels.items():
        word = said.token.strip().lower()
        mass[label] = math.fsum(math.exp(lp) for token, lp in top.items() if token.strip().lower() == word)
    missing = [label for label, p in mass.items() if p == 0.0]
    found = math.fsum(mass.values())
    bound = len(missing) * math.exp(min(top.values(), default=0.0))
    if missing and bound > TOLERANCE * found:
        raise VerdictUnparsable(
            f"{', '.join(missing)} not among the {len(top)} likeliest tokens and may hold up to {bound:.3f}; "
            f"the other labels hold {found:.3f}"
        )
    return read_labels(mass)


def _positions(choice: Any) -> list[tuple[str, dict[str, float]]]:
    """(token, {token: log-probability}) of each position; empty if the server gave none."""
    content = choice.logprobs.content if choice.logprobs else None
    if not content or not any(entry.top_logprobs for entry in content):
        return []
    return [(entry.token, {top.token: top.logprob for top in entry.top_logprobs or ()}) for entry in content]


def _error_line(error: Exception) -> str:
    """One line without the request: neither the key nor the customer's text belongs into a record's detail."""
    status = getattr(error, "status_code", None)
    return f"{type(error).__name__}{f' (HTTP {status})' if status else ''}"


def _retry_after(error: Any) -> float:
    """Seconds that a refusal (HTTP 429) asks to be left alone; 0 where it does not say, or names a date."""
    try:
        told = float(error.response.headers.get("retry-after", ""))
    except ValueError:
        return 0.0
    return told if math.isfinite(told) and told > 0 else 0.0
