"""Scorers: map a question to the probabilities of a few labels. Each replica of a pool runs one.

`RerankerScorer` reads P(yes) at the first token of the answer. `JudgeScorer` lets the model reason within a budget,
closes the reasoning itself and reads the label at the verdict position. Both use one vLLM engine, which batches all
questions of a call. A question with its own prompt gets a written answer (`scorer_written`). `OpenAIScorer` calls an
endpoint and `PairScorer` compares two texts without a prompt; each has its own file.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hamr.config.pools import PoolConfig
from hamr.errors import BadInput, ConfigError, VerdictUnparsable
from hamr.models.tokenizer import load_tokenizer
from hamr.pools.scorer_base import Scorer
from hamr.pools.scorer_openai import OpenAIScorer
from hamr.pools.scorer_pairs import check_pair_model, load_pair_scorer
from hamr.pools.scorer_prompt import ScorerPrompt
from hamr.pools.scorer_written import NO_PROMPT, Writer, sampling
from hamr.prompting.templates import PromptTemplate
from hamr.types import Answer, Question

if TYPE_CHECKING:
    from hamr.rollout.vllm_engine import VllmEngine

QUESTION_VARIABLES = frozenset({"history", "statement_a", "statement_b"})
"""Variables that `hamr.rewards.questions.consistency_question` passes to a scorer with its own prompt."""


class _EngineScorer(Scorer, ABC):
    """Base of the scorers on a local engine. The questions of a call are asked concurrently."""

    def __init__(self, writer: Writer) -> None:
        self.writer, self.config, self.engine = writer, writer.config, writer.engine

    async def score(self, questions: Sequence[Question]) -> list[Answer]:
        answers = (self.writer.answer(q) if q.is_written else self._answer(q) for q in questions)
        return list(await asyncio.gather(*answers))

    async def check(self) -> None:
        # Passes through the stepping thread. Raises EngineDied if it has ended; if a step hangs, this waits until the
        # pool's health check times out.
        await self.engine.count_unfinished()

    def close(self) -> None:
        self.engine.close()

    @abstractmethod
    async def _answer(self, question: Question) -> Answer:
        """Answer one question without a prompt of its own."""


class GraderScorer(_EngineScorer):
    """Pool that only writes answers."""

    async def _answer(self, question: Question) -> Answer:
        return Answer(failure="unparsable", detail=NO_PROMPT)


class _LabelScorer(_EngineScorer):
    """Base of the two scorers that read the probabilities of labels."""

    def __init__(self, pool: str, config: PoolConfig, engine: VllmEngine, prompt: ScorerPrompt, model: str) -> None:
        super().__init__(Writer(pool, config, engine, prompt.tokenizer, model))
        self.prompt = prompt

    async def _verdict(
        self,
        ids: Sequence[int],
        started: float,
        *,
        reasoning: str = "",
        spent: tuple[int, int],
        cached: int | None = None,
    ) -> Answer:
        """Ask for the label after `ids`.

        Args:
            spent: Prompt and output tokens of this question's earlier requests.
            cached: Prompt tokens that its first request found in the prefix cache; None if this is the first. Later
                cache hits are the question's own tokens and do not count.
        """
        logprobs, found = await self.engine.classify(ids, list(self.prompt.labels.values()))
        cached = found if cached is None else cached
        call = self.writer.charge(self.prompt.template.id, started, spent[0], spent[1] + 1, cached)
        try:
            reading = self.prompt.read(logprobs)
        except VerdictUnparsable as e:
            return Answer(failure="unparsable", detail=str(e), reasoning=reasoning, call=call)
        return Answer(
            score=reading.score,
            verdict=reading.verdict,
            probabilities=reading.probabilities,
            label_mass=reading.label_mass,
            reasoning=reasoning,
            call=call,
        )


class RerankerScorer(_LabelScorer):
    """S_R = P(yes) at the first token of the answer, without reasoning, over the template's labels."""

    async def _answer(self, question: Question) -> Answer:
        started = time.monotonic()
        ids = self.prompt.question_ids(question.variables) + self.prompt.verdict_ids(after_thinking=False)
        if len(ids) + 1 > self.config.max_context:
            return self.writer.too_long(self.prompt.template.id, started, len(ids))
        return await self._verdict(ids, started, spent=(len(ids), 0))


class JudgeScorer(_LabelScorer):
    """S_J = P(Yes) + 0.5 P(Part) at the verdict position, after at most `thinking_tokens` tokens of reasoning.

    Without a configured temperature, reasoning is greedy on the first attempt and sampled on retries. It is shortened
    if the context is short; a question without room for a bare verdict is a failure. With `thinking_tokens` 0 the
    reasoning is empty and the verdict is requested directly.
    """

    async def _answer(self, question: Question) -> Answer:
        started = time.monotonic()
        asked = self.prompt.question_ids(question.variables)
        opened = asked + self.prompt.thinking_ids()
        closing = self.prompt.verdict_ids(after_thinking=self.prompt.template.thinks)
        room = self.config.max_context - len(opened) - len(closing) - 1
        if room < 0:
            return self.writer.too_long(self.prompt.template.id, started, len(asked))
        budget = min(self.config.thinking_tokens, room) if self.prompt.template.thinks else 0
        if not budget:
            return await self._verdict(opened + closing, started, spent=(len(opened) + len(closing), 0))
        thought = await self.engine.complete(
            opened,
            sampling(question, self.config, budget),
            stop=(self.prompt.stop,),
            seed=question.seed + question.attempt,
        )
        # After a stop, the ids include the stop text itself or the end of the turn; keep only the text before it.
        stopped = thought.finish_reason != "length"
        thought_ids = self.prompt.tokenizer.encode(thought.text.rstrip()) if stopped else list(thought.token_ids)
        return await self._verdict(
            opened + thought_ids[:budget] + closing,
            started,
            reasoning=thought.text.strip(),
            spent=(len(opened) + len(closing), len(thought.token_ids)),
            cached=thought.cached_tokens,
        )


def build_scorer(pool: str, config: PoolConfig, model: Path) -> Scorer:
    """Build the scorer that `config` describes. `model` is its folder (unused by `openai` pools)."""
    if config.type == "openai":
        return OpenAIScorer(pool, config)
    if config.compares:
        return load_pair_scorer(pool, config, model, model_name(config, model))
    from hamr.rollout.vllm_engine import VllmEngine

    if config.role == "grader":
        tokenizer = load_tokenizer(model)
        engine = VllmEngine(model, config.engine, dtype=config.dtype, max_context=config.max_context)
        return GraderScorer(Writer(pool, config, engine, tokenizer, model_name(config, model)))
    prompt = load_prompt(pool, config, model)
    engine = VllmEngine(model, config.engine, dtype=config.dtype, max_context=config.max_context)
    kind = RerankerScorer if config.role == "reranker" else JudgeScorer
    return kind(pool, config, engine, prompt, model_name(config, model))


def check_scorer(pool: str, config: PoolConfig, model: Path) -> None:
    """Check without weights or torch, in milliseconds, that a scorer can be built. Raises BadInput."""
    check_template(pool, config)
    if config.type == "openai":
        OpenAIScorer.check_config(pool, config)
    elif config.compares:
        check_pair_model(pool, config, model)
    elif config.role == "grader":
        load_tokenizer(model)
    else:
        load_prompt(pool, config, model)


def check_template(pool: str, config: PoolConfig) -> None:
    """Check that the pool's template uses only known variables and shows the response.

    Raises ConfigError. Without this check every question would fail.
    """
    if not config.prompt:
        return
    wanted = PromptTemplate.read(config.prompt).variables
    if unknown := sorted(wanted - QUESTION_VARIABLES):
        remedy = f"its template uses the unknown variables {unknown}; a scorer gets {sorted(QUESTION_VARIABLES)}"
        raise ConfigError(f"pools.{pool}.prompt", config.prompt, remedy)
    if "statement_b" not in wanted:
        remedy = "its template does not show {{ statement_b }}, the response; add it"
        raise ConfigError(f"pools.{pool}.prompt", config.prompt, remedy)


def load_prompt(pool: str, config: PoolConfig, model: Path) -> ScorerPrompt:
    """Load the pool's template in the tokens of its model. Raises BadInput that names the pool."""
    template = PromptTemplate.read(config.prompt)
    try:
        return ScorerPrompt(template, load_tokenizer(model))
    except BadInput as e:
        raise BadInput(f"pools.{pool}: {e.where}", e.value, e.remedy) from e


def model_name(config: PoolConfig, model: Path) -> str:
    """Return the model's name for records; a fine-tuned one includes its folder's name to differ from its base."""
    return f"{config.model}@{model.name}" if config.finetune else config.model


def scorer_env(config: PoolConfig) -> Mapping[str, str]:
    """Return the environment variables of a replica's process."""
    if config.type != "vllm":
        return {}
    from hamr.rollout.vllm_settings import engine_env

    return engine_env(config.engine)
