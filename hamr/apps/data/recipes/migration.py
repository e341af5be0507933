"""Thought restructuring, second half (second paper, section 4.1): migration of the expert's reasoning to training
cases.

    chain      written by Zero-Think, or by a teacher where there is no such model
    response   written by a teacher, given the chain
    sampling   of several such drafts the best by the dialogue's judge, if it reaches `min_quality` and passes the
               judge of chains; else the next best
    refine     chain and response are rewritten from the feedback of the judges: those of the best draft where none
               passes, and those of a kept one that the dialogue's judge does not give 5, as a further item
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from hamr.apps.data.recipes.runner import Desk, Dropped
from hamr.apps.data.recipes.teachers import CheckFailure
from hamr.apps.data.recipes.thought import ThoughtRecipe, cot_checked, to_record
from hamr.apps.data.recipes.thought_checks import (
    DRAFT,
    ThoughtDraft,
    chain_fault,
    chain_of,
    join_chain,
    read_parts,
    response_of,
    work_fault,
)
from hamr.config.judged import GradedConfig
from hamr.data.actions import render_action
from hamr.data.progress import ItemResult, WorkItem
from hamr.data.rendering import policy_messages
from hamr.files import encodable
from hamr.rewards.graded import DIALOGUE, read_grade
from hamr.rewards.questions import case_variables, words_of
from hamr.types import Answer, Judgement, Question, ServiceSample

_BEST = 5


@dataclass(frozen=True, kw_only=True)
class MigrationRecipe(ThoughtRecipe):
    """Settings of the recipe.

    At most `candidates` drafts are sampled at `temperature`; sampling stops at one that the dialogue's judge gives 5.
    `refine`: rounds of rewriting, 0 for none. `expand`: also rewrite kept drafts and keep both, which expands the set
    as in the paper. `zero_think`: the second pool writes the chains. The paper gives none of
    these numbers.
    """

    candidates: int = 4
    temperature: float = 1.0
    min_quality: int = 4
    refine: int = 1
    expand: bool = True
    zero_think: bool = False
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Graded:
    """A draft with its grade for dialogue quality, and the reason."""

    draft: ThoughtDraft
    quality: int
    why: str


@dataclass(frozen=True)
class Migration:
    """The recipe's steps for one sample. Its references are not used."""

    recipe: MigrationRecipe

    async def __call__(self, item: WorkItem, desk: Desk) -> ItemResult:
        sample: ServiceSample = item.content
        graded = await self._candidates(sample, desk)
        faults: list[CheckFailure] = []
        for one in graded:
            cot = await self._judge(sample, one, desk)
            if not isinstance(cot, CheckFailure):
                more = await self._expand(sample, one, desk)
                return ItemResult(kept=_record(one, cot) | ({"more": more} if more else {}))
            faults.append(cot)
        best, fault = graded[0], faults[0]
        for attempt in range(self.recipe.refine):
            draft = await self._refine(sample, best.draft, fault, attempt, desk)
            if isinstance(draft, CheckFailure):
                desk.notes.append(f"refined: {draft.check}")
                continue
            best = await self._grade(sample, draft, desk)
            cot = await self._judge(sample, best, desk)
            desk.notes.append(f"refined: {cot.check if isinstance(cot, CheckFailure) else 'kept'}")
            if not isinstance(cot, CheckFailure):
                return ItemResult(kept=_record(best, cot))
            fault = cot
        raise Dropped(fault.check, fault.detail)

    async def _expand(self, sample: ServiceSample, one: Graded, desk: Desk) -> list[dict[str, Any]]:
        """Return the record of the kept draft's rewriting, if it is another one, no worse, and passes the judges."""
        if not self.recipe.expand or one.quality == _BEST:
            return []
        fault = CheckFailure(check="judge: dialogue_quality", detail=f"grade {one.quality} of 5. {one.why}")
        try:
            draft = await self._refine(sample, one.draft, fault, 0, desk)
            if not isinstance(draft, CheckFailure):
                again = await self._grade(sample, draft, desk)
                cot = await self._judge(sample, again, desk)
                if again.quality >= one.quality and draft != one.draft and not isinstance(cot, CheckFailure):
                    desk.notes.append("expanded: kept")
                    return [_record(again, cot)]
                draft = cot if isinstance(cot, CheckFailure) else CheckFailure(check="no better")
            desk.notes.append(f"expanded: {draft.check}")
        except Dropped as end:
            if end.passing:
                raise
            desk.notes.append(f"expanded: {end.reason}")
        return []

    async def _candidates(self, sample: ServiceSample, desk: Desk) -> list[Graded]:
        """Return drafts that pass the rules, by descending grade; ties keep their order.

        Raises Dropped, with the fault of the first draft, where none passes.
        """
        graded: list[Graded] = []
        faults: list[CheckFailure] = []
        for number in range(self.recipe.candidates):
            try:
                draft = await self._draft(sample, number, desk)
                if isinstance(draft, ThoughtDraft):
                    graded.append(await self._grade(sample, draft, desk))
            except Dropped as end:
                if end.passing:
                    raise
                draft = CheckFailure(check=end.reason, detail=end.detail)
            if isinstance(draft, CheckFailure):
                faults.append(draft)
                desk.notes.append(f"candidates: {draft.check}")
            elif graded[-1].quality == _BEST:
                break
        if not graded:
            raise Dropped(faults[0].check, faults[0].detail)
        return sorted(graded, key=lambda one: -one.quality)

    async def _draft(self, sample: ServiceSample, number: int, desk: Desk) -> ThoughtDraft | CheckFailure:
        """Write the chain first, then the response given the chain."""
        language, case = self.recipe.language, case_variables(sample)
        if self.recipe.zero_think:
            asked = self._sample_question(
                Question(messages=tuple(policy_messages(sample, "think_answer"))), sample, number
            )
            chain = zero_think_chain(await desk.verdict("chain", asked, "second"))
            chain = chain if isinstance(chain, CheckFailure) else chain_fault(chain, sample, language) or chain
        else:
            asked = self._sample_question(Question(variables=case, prompt=f"thought_chain.{language}"), sample, number)
            chain = chain_of(await desk.teacher("chain", asked), sample, language)
        if isinstance(chain, CheckFailure):
            return chain
        under = Question(variables={**case, "reasoning": chain}, prompt=f"thought_response.{language}")
        answer = await desk.teacher("response", self._sample_question(under, sample, number))
        return response_of(answer, chain, sample, language)

    def _sample_question(self, question: Question, sample: ServiceSample, number: int) -> Question:
        return dataclasses.replace(
            question,
            affinity=sample.id,
            temperature=self.recipe.temperature,
            max_new_tokens=self.recipe.max_new_tokens,
            seed=self.recipe.seed + number,
        )

    async def _refine(
        self, sample: ServiceSample, draft: ThoughtDraft, fault: CheckFailure, attempt: int, desk: Desk
    ) -> ThoughtDraft | CheckFailure:
        recipe = self.recipe
        shown = words_of(render_action(draft.action), draft.action, "plain")
        current = {"reasoning": draft.chain, "response": shown.words, "call": shown.call}
        variables = {**case_variables(sample), **current, "fault": f"{fault.check}: {fault.detail}"}
        text = await desk.teacher("refine", recipe.question(sample, "thought_refine", variables, attempt))
        parts = read_parts(text, DRAFT)
        if isinstance(parts, CheckFailure):
            return work_fault(text, recipe.language, parts)
        chain = join_chain(parts)
        return chain_fault(chain, sample, recipe.language) or response_of(
            parts["response"], chain, sample, recipe.language
        )

    async def _grade(self, sample: ServiceSample, draft: ThoughtDraft, desk: Desk) -> Graded:
        shown = words_of(render_action(draft.action), draft.action, "plain")
        config = GradedConfig(language=self.recipe.language)

        def ask(attempt: int) -> Question:
            return DIALOGUE.question(sample, [shown], config, attempt)

        def read(text: str) -> Judgement:
            return read_grade(text, DIALOGUE.name)

        judgement = await desk.read_judge("dialogue quality", ask, read)
        assert judgement.grade is not None, "read_grade returns one"
        return Graded(draft=draft, quality=judgement.grade, why=judgement.reason)

    async def _judge(self, sample: ServiceSample, one: Graded, desk: Desk) -> int | CheckFailure:
        """Return the grade of the chain, or the fault. A draft below `min_quality` is not sent to the second judge."""
        if one.quality < self.recipe.min_quality:
            return CheckFailure(check="judge: dialogue_quality", detail=f"grade {one.quality} of 5. {one.why}")
        return await cot_checked(sample, one.draft.chain, one.draft.action, self.recipe, desk)


def _record(one: Graded, cot: int) -> dict[str, Any]:
    return to_record(one.draft.chain, one.draft.action, quality=one.quality, cot_quality=cot)


def zero_think_chain(answer: Answer) -> str | CheckFailure:
    """Return the chain of an answer in the model's trained format, <think>..</think><answer>...

    The text after the chain, complete or not, is ignored. A server that separates the chain from the text returns it as
    the reasoning.

    >>> zero_think_chain(Answer(text="<think>They are cross.</think><answer>Sorry!"))
    'They are cross.'
    """
    text = answer.text if answer.text is not None else answer.reasoning
    chain, closed, _ = text.partition("</think>")
    if closed:
        return encodable(chain.strip().removeprefix("<think>")).strip()
    if answer.text is not None and answer.reasoning:
        return encodable(answer.reasoning).strip()
    return CheckFailure(check="tags", detail=answer.detail or "0 x </think>")
