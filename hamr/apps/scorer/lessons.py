"""Training and test data of scorers: labelled pairs of replies, or labelled responses for a grader."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from hamr.apps.scorer.grader import Grading, labelled_responses
from hamr.apps.scorer.judged import JudgedResponse, borne_out
from hamr.apps.scorer.pair_check import pair_question, word_overlap
from hamr.config.pools import PoolConfig, ScorerTrainingConfig
from hamr.config.schema import Config
from hamr.data.contrasts import contrasts
from hamr.data.formats import Formats
from hamr.data.pairs import ReplyPair, reply_pairs
from hamr.data.samples import to_json
from hamr.models.bundled import resolve_model
from hamr.models.tokenizer import load_tokenizer
from hamr.pools.pair_training import PairExample, finetune_pairs, pair_scores
from hamr.pools.scorer_pairs import is_cross_encoder
from hamr.pools.scorer_prompt import ScorerPrompt
from hamr.prompting.templates import PromptTemplate
from hamr.trainer.scorer_training import ScorerExample, device_of, finetune, verdict_scores
from hamr.types import ServiceSample

PAIRS_SEED = 17
CHECK_PAIRS = 60
"""Held-out pairs on which the raw model is measured, to decide whether to fine-tune."""
RIGHT_EACH = 3
FEWEST_EACH = 5
"""Minimum number of pairs of a contrast."""
VERBATIM_SHARE = 0.3
"""Share of the contrasts in which one of the right replies is the reference."""
GRADERS_OWN = {"reward", "labelled", "held_out"}
"""Keys of a `finetune` section that a scorer of pairs does not use."""


@dataclass(frozen=True, kw_only=True)
class Exam(ABC):
    """Questions with known answers. `labels`: whether a high score is right. `overlap`: a score that needs no model."""

    labels: list[bool]
    overlap: list[float]

    def suits(self, model: Path) -> bool:
        """Return whether the model can answer without training."""
        return True

    @abstractmethod
    def scores(self, model: Path, tuning: ScorerTrainingConfig) -> list[float]:
        """Return the model's score in [0, 1] for every question."""


@dataclass(frozen=True, kw_only=True)
class VerdictExam(Exam):
    """Exam for language models. Questions are token ids that end before the verdict, so that no model reasons.

    `values`: value of each token of the verdict.
    """

    questions: list[list[int]]
    values: dict[int, float]

    def scores(self, model: Path, tuning: ScorerTrainingConfig) -> list[float]:
        questions = [tuple(question) for question in self.questions]
        return verdict_scores(
            model, questions, self.values, dtype=tuning.dtype, threads=tuning.threads, device=device_of(tuning)
        )


@dataclass(frozen=True, kw_only=True)
class PairExam(Exam):
    """Exam for cross-encoders."""

    pairs: list[tuple[str, str]]

    def suits(self, model: Path) -> bool:
        return is_cross_encoder(model)

    def scores(self, model: Path, tuning: ScorerTrainingConfig) -> list[float]:
        return pair_scores(model, self.pairs, threads=tuning.threads)


@dataclass(frozen=True, kw_only=True)
class Lessons:
    """Training data and exam of a scorer, which are built when they are needed.

    `basis`: everything that they depend on besides the model, as JSON. `train`: trains a model on the examples.
    """

    basis: list[Any]
    exam: Callable[[], Exam]
    examples: Callable[[], list[ScorerExample] | list[PairExample]]
    train: Callable[..., None] = finetune


def pair_lessons(
    pool: PoolConfig, max_pairs: int, train: Sequence[ServiceSample], held_out: Sequence[ServiceSample]
) -> Lessons:
    """Return the lessons of a reranker or a judge."""
    assert pool.finetune is not None, "only such pools learn"
    most = min(pool.finetune.examples, max_pairs)
    checks = [p for p in reply_pairs(held_out, 2 * CHECK_PAIRS, PAIRS_SEED) if p.label != "partial"][:CHECK_PAIRS]
    settings = pool.finetune.model_dump(exclude=GRADERS_OWN)
    asked = [dataclasses.astuple(p) for p in checks]
    if pool.compares:
        contrasted = contrast_examples(train, most, part=pool.finetune.part)
        return Lessons(
            basis=[pool.type, settings, asked, contrasted],
            exam=lambda: pair_exam(pool, checks),
            examples=lambda: contrasted,
            train=finetune_pairs,
        )
    pairs = reply_pairs(train, most, PAIRS_SEED)
    prompt = _prompt_of(pool)
    return Lessons(
        basis=[prompt.template.id, settings, [*map(dataclasses.astuple, pairs), *asked]],
        exam=lambda: pair_exam(pool, checks),
        examples=lambda: training_examples(prompt, pairs),
    )


def grader_lessons(name: str, pool: PoolConfig, config: Config) -> Lessons:
    """Return the lessons of a grader. Raises DataError for an invalid file of labelled responses."""
    assert pool.finetune is not None, "only such pools learn"
    grading = grading_of(pool, config)
    train, held_out = labelled_responses(name, pool.finetune)
    checks = held_out[:CHECK_PAIRS]
    rows = [[to_json(row.sample), row.response, row.labels, row.reason] for row in (*train, *checks)]
    return Lessons(
        basis=[
            grading.prompt_id,
            [grading.formats.asked, grading.formats.post_share],
            pool.finetune.model_dump(exclude={"labelled", "held_out"}),
            rows,
        ],
        exam=lambda: grader_exam(grading, checks),
        examples=lambda: grading.examples(train),
    )


def grading_of(pool: PoolConfig, config: Config) -> Grading:
    assert pool.finetune is not None, "only such pools learn"
    return Grading(
        reward=pool.finetune.reward,
        rewards=config.rewards,
        tokenizer=load_tokenizer(resolve_model(pool.model)),
        formats=Formats.of_model(config.model),
    )


def contrast_examples(
    samples: Sequence[ServiceSample], n: int, seed: int = PAIRS_SEED, *, part: float = 0.5
) -> list[PairExample]:
    """Return at most `n` pairs for a cross-encoder.

    Each contrast gives some right replies, one that is partly right (with the target `part`), and twice as many wrong
    ones, half of them with other acts.
    """
    rng = Random(f"contrast examples/{seed}")
    examples: list[PairExample] = []
    for contrast in contrasts(samples, n // FEWEST_EACH + 1, seed):
        right = rng.sample(contrast.right, min(RIGHT_EACH, len(contrast.right)))
        if rng.random() < VERBATIM_SHARE:
            right[-1] = contrast.reference
        acts = [wrong.text for wrong in contrast.wrong if wrong.kind == "act"]
        # Repetition is not learned from these few pairs, and would take the place of others.
        others = [wrong.text for wrong in contrast.wrong if wrong.kind not in ("act", "repeated")]
        wrong = [text for own in (acts, others) for text in rng.sample(own, min(RIGHT_EACH, len(own)))]
        partial = [rng.choice(contrast.partial)] if contrast.partial else []
        # Any right wording serves as the reference, so that first texts vary even if there are few references.
        known = (contrast.reference, *contrast.right)
        for texts, target in ((right, 1.0), (partial, part), (wrong, 0.0)):
            examples += [PairExample(rng.choice(known), text, target) for text in texts]
    return examples[:n]


def pair_exam(pool: PoolConfig, pairs: Sequence[ReplyPair]) -> Exam:
    """Return a test of consistent against inconsistent pairs."""
    labels = [pair.label == "consistent" for pair in pairs]
    overlap = [word_overlap(pair.statement_a, pair.statement_b) for pair in pairs]
    if pool.compares:
        texts = [(pair.statement_a, pair.statement_b) for pair in pairs]
        return PairExam(pairs=texts, labels=labels, overlap=overlap)
    prompt = _prompt_of(pool)
    values = {prompt.labels[label]: verdict.value for label, verdict in prompt.template.labels.items()}
    questions = [question_ids(prompt, pair, think=False) for pair in pairs]
    return VerdictExam(questions=questions, values=values, labels=labels, overlap=overlap)


def _prompt_of(pool: PoolConfig) -> ScorerPrompt:
    return ScorerPrompt(PromptTemplate.read(pool.prompt), load_tokenizer(resolve_model(pool.model)))


def grader_exam(grading: Grading, rows: Sequence[JudgedResponse]) -> VerdictExam:
    """Return a test of clean against flawed responses."""
    opened, values = grading.verdict_ids()
    return VerdictExam(
        questions=[grading.question_ids(row) + opened for row in rows],
        values=values,
        labels=[not row.labels for row in rows],
        overlap=[borne_out(row) for row in rows],
    )


def training_examples(prompt: ScorerPrompt, pairs: Sequence[ReplyPair]) -> list[ScorerExample]:
    """Return the pairs as examples.

    For a scorer that reasons, every second pair has no reasoning or, alternately, that of another pair, neither of
    which is trained. The scorer's own reasoning is sometimes wrong. If training always showed correct reasoning, the
    verdict would follow the reasoning instead of the statements.
    """
    if not prompt.template.thinks:
        return [example(prompt, pair) for pair in pairs]
    thoughts = [None if i % 2 == 0 else "" if i % 4 == 1 else _mistaken(pairs, i) for i in range(len(pairs))]
    return [example(prompt, pair, thought) for pair, thought in zip(pairs, thoughts, strict=True)]


def _mistaken(pairs: Sequence[ReplyPair], i: int) -> str:
    """Return another reasoning: that of the nearest pair with a different one, if possible about the same statement."""
    others = sorted((j for j in range(len(pairs)) if pairs[j].thought != pairs[i].thought), key=lambda j: abs(j - i))
    alike = [j for j in others if pairs[j].statement_a == pairs[i].statement_a]
    return next((pairs[j].thought for j in (*alike, *others)), "")


def example(prompt: ScorerPrompt, pair: ReplyPair, thought: str | None = None) -> ScorerExample:
    """Return a labelled pair as the template's question and the scorer's whole answer.

    `thought`: text in place of the pair's reasoning, which is not trained.
    """
    level = {"consistent": "yes", "partial": "part", "inconsistent": "no"}[pair.label]
    verdict = {level: 1.0} if level in prompt.labels else {"yes": 0.5, "no": 0.5}
    ids: list[int] = []
    if prompt.template.thinks:
        reasoning = pair.thought if thought is None else thought
        ids = prompt.tokenizer.encode(reasoning) + prompt.verdict_ids(after_thinking=True)
    most_likely = max(verdict, key=lambda label: verdict[label])
    return ScorerExample(
        prompt_ids=tuple(question_ids(prompt, pair, think=True)),
        target_ids=(*ids, prompt.labels[most_likely]),
        verdict=tuple((prompt.labels[label], probability) for label, probability in verdict.items()),
        family=pair.statement_a,
        sound=thought is None,
    )


def question_ids(prompt: ScorerPrompt, pair: ReplyPair, *, think: bool) -> list[int]:
    """Return the rendered question up to the scorer's output: before its reasoning, or before its verdict."""
    asked = prompt.question_ids(pair_question(pair).variables)
    if not prompt.template.thinks:
        return asked + prompt.verdict_ids(after_thinking=False)
    opened = asked + prompt.thinking_ids()
    return opened if think else opened + prompt.verdict_ids(after_thinking=True)
