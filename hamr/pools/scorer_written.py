"""Written answers: a question brings its own template and gets the model's whole answer as text.

The reward that sent the question interprets the text (`hamr.rewards`); this module only ensures that it is complete.
The answer comes from a local engine or, in `scorer_openai`, from an endpoint.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hamr.config.pools import PoolConfig
from hamr.models.tokenizer import Tokenizer
from hamr.pools.scorer_base import record_call
from hamr.pools.structured import bound_lengths
from hamr.protocols import SamplingConfig
from hamr.rewards.written import WrittenPrompt
from hamr.types import Answer, Question, ScorerCall
from hamr.types.rollouts import mean_logprob

if TYPE_CHECKING:
    from hamr.rollout.vllm_engine import VllmEngine

REASK_TEMPERATURE = 0.7
"""Temperature of retries without a configured one. The first attempt is greedy; a greedy retry would repeat it."""

NO_PROMPT = "a grader has no prompt of its own, and the question has none"
CHAT = "chat"
"""Name recorded as template and version if a question brings a whole conversation."""


def temperature(question: Question, config: PoolConfig) -> float:
    for given in (question.temperature, config.temperature):
        if given is not None:
            return given
    return REASK_TEMPERATURE if question.attempt else 0.0


def sampling(question: Question, config: PoolConfig, budget: int) -> SamplingConfig:
    """Return the sampling settings for the question's reasoning or answer of at most `budget` tokens."""
    return SamplingConfig(
        temperature=temperature(question, config),
        top_p=config.top_p,
        top_k=config.top_k,
        max_new_tokens=budget,
        stop=question.stop,
        extra=config.sampling_extra,
    )


def conversation(question: Question) -> tuple[Sequence[Mapping[str, Any]], str]:
    """Return (messages, recorded prompt version) of a question that wants a written answer."""
    if question.messages:
        return question.messages, CHAT
    prompt = WrittenPrompt.load(question.prompt)
    return prompt.render(question.variables, question.each), prompt.id


def cut_off(tokens: int, text: str, call: ScorerCall, remedy: str = "") -> Answer:
    """Return the failure of a truncated answer, which lacks the verdict at its end."""
    detail = f"cut off after {tokens} tokens{f'; {remedy}' if remedy else ''}"
    return Answer(failure="unparsable", detail=detail, reasoning=text, call=call)


class Writer:
    """Text generation with the model of a local engine."""

    def __init__(self, pool: str, config: PoolConfig, engine: VllmEngine, tokenizer: Tokenizer, model: str) -> None:
        self.pool, self.config, self.engine, self.tokenizer, self.model = pool, config, engine, tokenizer, model

    async def answer(self, question: Question) -> Answer:
        """Return `text`, or `unparsable` if the question leaves no room in the context or the answer is truncated.

        With `structured` the engine enforces the question's schema, and a length that fits the token budget.
        """
        started = time.monotonic()
        messages, prompt = conversation(question)
        ids = self.tokenizer.chat_ids(messages, tools=question.tools)
        room = self.config.max_context - len(ids)
        if room < 1:
            return self.too_long(prompt, started, len(ids))
        budget = min(question.max_new_tokens or self.config.answer_tokens, room)
        completion = await self.engine.complete(
            ids,
            sampling(question, self.config, budget),
            seed=question.seed + question.attempt,
            schema=bound_lengths(question.schema, budget) if self.config.structured and question.schema else None,
            logprobs=question.logprobs,
        )
        logprob = mean_logprob(completion.logprobs) if question.logprobs else None
        call = self.charge(prompt, started, len(ids), len(completion.token_ids), completion.cached_tokens)
        if completion.finish_reason != "stop":
            return replace(cut_off(len(completion.token_ids), completion.text, call), mean_logprob=logprob)
        return Answer(text=completion.text, call=call, mean_logprob=logprob)

    def too_long(self, prompt: str, started: float, tokens: int) -> Answer:
        """Return the failure of a question that leaves no room for an answer."""
        detail = f"the question has {tokens} tokens, which leaves no room in max_context={self.config.max_context}"
        return Answer(failure="unparsable", detail=detail, call=self.charge(prompt, started, 0, 0))

    def charge(
        self, prompt: str, started: float, prompt_tokens: int, output_tokens: int, cached_tokens: int = 0
    ) -> ScorerCall:
        """Return `record_call` of a question to this model. `prompt` is the recorded version."""
        return record_call(
            self.pool, self.config, self.model, prompt, started, prompt_tokens, output_tokens, cached_tokens
        )
