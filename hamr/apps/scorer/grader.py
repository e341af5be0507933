"""Training examples of a grader: labelled responses with the answers that its reward can parse."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from hamr.apps.scorer.judged import CLEAN, JudgedResponse, read_judged, split_off
from hamr.config.pools import ScorerTrainingConfig
from hamr.config.rewards import RewardsConfig
from hamr.data.formats import Formats
from hamr.errors import BadInput
from hamr.models.tokenizer import Tokenizer
from hamr.rewards import hallucination, risk
from hamr.rewards.judged import VETOES
from hamr.rewards.questions import response_words
from hamr.rewards.written import WrittenPrompt
from hamr.trainer.scorer_training import ScorerExample

FLAWS: Mapping[str, tuple[str, ...]] = {
    "risk": risk.TYPES,
    "hallucination": tuple(label for label in hallucination.LABELS if label != CLEAN),
}
NOTHING = "None"
"""Reason of a response without flaws, where the file has none."""
SEED = 17


@dataclass(frozen=True, kw_only=True)
class Grading:
    """One reward's questions and answers in one model's tokens."""

    reward: str
    rewards: RewardsConfig
    tokenizer: Tokenizer
    formats: Formats

    @property
    def prompt_id(self) -> str:
        """Id of the template of the reward."""
        section = getattr(self.rewards, self.reward)
        return WrittenPrompt.load(section.prompt or f"{self.reward}.{section.language}").id

    def question_ids(self, row: JudgedResponse) -> list[int]:
        """Return the tokens of the router's question about the response, up to the start of the answer."""
        words = response_words(row.response, self.formats.of(row.sample))
        asked = VETOES[self.reward].question(row.sample, [words], getattr(self.rewards, self.reward))
        return self.tokenizer.chat_ids(WrittenPrompt.load(asked.prompt).render(asked.variables, asked.each))

    def answer_ids(self, labels: Sequence[str], reason: str) -> tuple[list[int], int]:
        """Return the whole answer and the index of its label: the first token in which the answers with this reason
        differ."""
        every = ((), *((flaw,) for flaw in FLAWS[self.reward]))
        others = [self.tokenizer.encode(self._answer(own, reason)) for own in every]
        ids = self.tokenizer.encode(self._answer(labels, reason))
        at = next(i for i in range(len(ids)) if len({tuple(other[: i + 1]) for other in (ids, *others)}) > 1)
        return ids, at

    def _answer(self, labels: Sequence[str], reason: str) -> str:
        if self.reward == "risk":
            verdict: dict[str, object] = {"types": list(labels), "risk": "yes" if labels else "no"}
        else:
            verdict = {"judgment": labels[0] if labels else CLEAN}
        return json.dumps({"reason": reason, **verdict}, ensure_ascii=False)

    def verdict_ids(self) -> tuple[list[int], dict[int, float]]:
        """Return the tokens before the label of an answer without a reason, and the value of each label's first token:
        1 if the response is clean, else 0."""
        clean, at = self.answer_ids((), "")
        flawed = {self.answer_ids((flaw,), "")[0][at] for flaw in FLAWS[self.reward]}
        assert clean[at] not in flawed, "the first token in which answers differ tells clean from flawed"
        return clean[:at], {clean[at]: 1.0} | dict.fromkeys(sorted(flawed), 0.0)

    def examples(self, rows: Sequence[JudgedResponse]) -> list[ScorerExample]:
        """Return the training examples. A random half of them has no reason.

        A grader that always saw a correct reason before the label would trust its own reason at scoring time, even a
        wrong one. No example has a reason if no row has one, as with planted responses.
        """
        rng, known = Random(SEED), any(row.reason for row in rows)
        return [self._example(row, (row.reason or NOTHING) if known and rng.random() < 0.5 else "") for row in rows]

    def _example(self, row: JudgedResponse, reason: str) -> ScorerExample:
        ids, at = self.answer_ids(row.labels, reason)
        return ScorerExample(
            prompt_ids=tuple(self.question_ids(row)),
            target_ids=(*ids, self.tokenizer.eos_id),
            verdict=((ids[at], 1.0),),
            behind=len(ids) - at,
            family=row.sample.id,
            sound=bool(reason),
        )


def labelled_responses(name: str, tuning: ScorerTrainingConfig) -> tuple[list[JudgedResponse], list[JudgedResponse]]:
    """Return (training responses, held-out responses), shuffled, because a file may have its flaws at the end.

    Raises BadInput if one of them has only clean or only flawed responses.
    """
    assert tuning.labelled is not None, "a grader's section has it"
    flaws = FLAWS[tuning.reward]
    train, held_out = read_judged(tuning.labelled, flaws, tuning.reward), []
    if tuning.held_out:
        held_out = read_judged(tuning.held_out, flaws, tuning.reward)
    else:
        train, held_out = split_off(train, SEED)
    for key, rows in (("labelled", train), ("held_out", held_out)):
        flawed = sum(bool(row.labels) for row in rows)
        if not 0 < flawed < len(rows):
            use = "learn from" if key == "labelled" else "be measured on"
            remedy = f"has {flawed} flawed responses of {len(rows)} to {use}"
            given = getattr(tuning, key) or tuning.labelled
            raise BadInput(f"pools.{name}.finetune.{key}", given, f"{remedy}; both kinds are needed")
        Random(SEED).shuffle(rows)
    return train[: tuning.examples], held_out
