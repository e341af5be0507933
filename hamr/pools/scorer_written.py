"""Written answers: a question brings its own template, the model's whole answer goes back as text.

What the text means is for the reward that asked (`hamr.rewards`); here it is only made sure that it is whole. Two ways
to get one: from a local engine, or (in `scorer_openai`) from an endpoint.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hamr.config.pools import PoolConfig
from hamr.models.tokenizer import Tokenizer
from hamr.pools.scorer_call import bill
from hamr.pools.structured import bound_lengths
from hamr.protocols import SamplingConfig
from hamr.rewards.written import WrittenPrompt
from hamr.types import Answer, Question, ScorerCall

if TYPE_CHECKING:
    from hamr.rollout.vllm_engine import VllmEngine

REASK_TEMPERATURE = 0.7
"""Of every attempt after the first, which is greedy: asked again at 0, a model says the same again."""

NO_PROMPT = "a grader has no prompt of its own, and the question brings none"


CHAT = "chat"
"""What stands for the template's name and version where a question brings a whole conversation."""


def temperature(question: Question) -> float:
    if question.temperature is not None:
        return question.temperature
    return REASK_TEMPERATURE if question.attempt else 0.0


def conversation(question: Question) -> tuple[Sequence[Mapping[str, str]], str]:
    """(messages, what a record keeps as prompt version) of a question that asks for a written answer."""
    if question.messages:
        return question.messages, CHAT
    prompt = WrittenPrompt.load(question.prompt)
    return prompt.render(question.variables, question.each), prompt.id


def longest(question: Question, answer_tokens: int) -> int:
    """Most tokens of the answer."""
    return question.max_new_tokens or answer_tokens


def cut_off(tokens: int, text: str, call: ScorerCall) -> Answer:
    """An answer that ran into its limit has no end, and its verdict stands at the end."""
    return Answer(failure="unparsable", detail=f"cut off after {tokens} tokens", reasoning=text, call=call)


class Writer:
    """Lets the model of a local engine write."""

    def __init__(self, pool: str, config: PoolConfig, engine: VllmEngine, tokenizer: Tokenizer, model: str) -> None:
        self.pool, self.config, self.engine, self.tokenizer, self.model = pool, config, engine, tokenizer, model

    async def answer(self, question: Question) -> Answer:
        """`text`, or `unparsable` where the question leaves no room in the context or the answer is cut off.

        With `structured` the engine holds the answer to the question's schema, and to a length that the tokens allow.
        """
        started = time.monotonic()
        messages, prompt = conversation(question)
        ids = self.tokenizer.chat_ids(messages)
        room = self.config.max_context - len(ids)
        if room < 1:
            detail = (
                f"the question has {len(ids)} tokens, which leaves no room in max_context={self.config.max_context}"
            )
            return Answer(failure="unparsable", detail=detail, call=self._call(prompt, started, 0, 0))
        budget = min(longest(question, self.config.answer_tokens), room)
        said = await self.engine.complete(
            ids,
            SamplingConfig(temperature=temperature(question), max_new_tokens=budget, stop=question.stop),
            seed=question.seed + question.attempt,
            schema=bound_lengths(question.schema, budget) if self.config.structured and question.schema else None,
        )
        call = self._call(prompt, started, len(ids), len(said.token_ids), said.cached_tokens)
        if said.finish_reason != "stop":
            return cut_off(len(said.token_ids), said.text, call)
        return Answer(text=said.text, call=call)

    def _call(
        self, prompt: str, started: float, prompt_tokens: int, output_tokens: int, cached_tokens: int = 0
    ) -> ScorerCall:
        return bill(self.pool, self.config, self.model, prompt, started, prompt_tokens, output_tokens, cached_tokens)


class GraderScorer:
    """A pool that does nothing but write."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer

    async def score(self, questions: Sequence[Question]) -> list[Answer]:
        return list(await asyncio.gather(*(self._answer(question) for question in questions)))

    async def check(self) -> None:
        await self.writer.engine.count_unfinished()

    def close(self) -> None:
        self.writer.engine.close()

    async def _answer(self, question: Question) -> Answer:
        if not question.written:
            return Answer(failure="unparsable", detail=NO_PROMPT)
        return await self.writer.answer(question)
