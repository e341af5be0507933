"""Planning-aware trajectories (first paper, section 3.2, Eq. 3, Appendix D.3.2): a teacher rewrites logged turns as a
plan.

The turns after a decision point, (a_t, q_{t+1}, a_{t+1}), become a plan in two steps with the tool calls:

    plan_1   a~_t: what I do now, and why; from the first turn alone
    plan_2   q~_{t+1} and a~_{t+1}: assuming what came back, this indicates ..., therefore, I can ...
    actions  the tool calls of both turns, unchanged

Rules check first (`patm_checks`), then a judge twice (`judged_checks`). A plan that fails is rewritten once, given its
fault; if it fails again, it is dropped by that check.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from hamr.apps.data.recipes.judged_checks import (
    PLANNING_SCHEMA,
    REWRITE_SCHEMA,
    read_planning_check,
    read_rewrite_check,
)
from hamr.apps.data.recipes.patm_checks import RewritePlan, calls_of, calls_text, decision_at, plan_fault, read_plan
from hamr.apps.data.recipes.repair import ask_until_valid, writing_question
from hamr.apps.data.recipes.runner import Desk, WritingRecipe
from hamr.apps.data.recipes.teachers import CheckFailure, teacher_problem
from hamr.data.progress import ItemResult, WorkItem, item_key
from hamr.data.rendering import turns_text
from hamr.data.samples import to_json, turn_json
from hamr.data.sft_items import SftItem, TargetPart
from hamr.data.trajectories import Window, action_turn
from hamr.prompting.reading import Schema
from hamr.rewards.questions import case_variables
from hamr.types import Language, Question, ServiceSample

_CHECKS = (
    ("rewrite check", "patm_rewrite_check", REWRITE_SCHEMA, read_rewrite_check),
    ("planning check", "patm_plan_check", PLANNING_SCHEMA, read_planning_check),
)
"""The judge's checks: step, prompt, schema and parser of its answer."""


def patm_items(found: Iterable[Window], recipe: WritingRecipe, by: str) -> list[WorkItem]:
    """Return items; a window is named by its decision point."""
    items = []
    for window in found:
        turns = [turn_json(turn) for turn in (*window.environment, action_turn(window.second))]
        key = item_key("patm", to_json(window.sample), turns, dataclasses.asdict(recipe), by)
        items.append(WorkItem(id=window.sample.id, key=key, content=window))
    return items


@dataclass(frozen=True)
class Patm:
    """The recipe's steps for one window."""

    recipe: WritingRecipe

    async def __call__(self, item: WorkItem, desk: Desk) -> ItemResult:
        window: Window = item.content

        async def check(text: str) -> RewritePlan | CheckFailure:
            return await self._check(window, text, desk)

        plan = await ask_until_valid(desk, "rewrite", partial(self.rewrite_question, window), check)
        return ItemResult(kept=dataclasses.asdict(dataclasses.replace(plan, actions=calls_text(calls_of(window)))))

    async def _check(self, window: Window, text: str, desk: Desk) -> RewritePlan | CheckFailure:
        language = self.recipe.language
        plan = read_plan(text)
        words = text if isinstance(plan, CheckFailure) else f"{plan.plan_1}\n{plan.plan_2}"
        problem = teacher_problem(words, language)
        if problem is not None:
            return problem
        if isinstance(plan, CheckFailure):
            return plan
        fault = plan_fault(plan, window, language)
        if fault is not None:
            return fault
        for step, prompt, schema, read in _CHECKS:
            ask = partial(self.check_question, prompt, schema, window, plan)
            scores, why = await desk.read_judge(step, ask, read)
            failed = next((name for name, score in scores.items() if not score), None)
            if failed is not None:
                return CheckFailure(check=f"judge: {failed}", detail=why)
        return plan

    def rewrite_question(self, window: Window, shown: dict[str, str], attempt: int) -> Question:
        variables = {**window_variables(window), **shown}
        return writing_question(self.recipe, window.sample, "patm_rewrite", variables, attempt)

    def check_question(self, prompt: str, schema: Schema, window: Window, plan: RewritePlan, attempt: int) -> Question:
        return Question(
            variables={**window_variables(window), **dataclasses.asdict(plan)},
            affinity=window.sample.id,
            prompt=f"{prompt}.{self.recipe.language}",
            schema=schema,
            attempt=attempt,
        )


def window_variables(window: Window) -> dict[str, str]:
    """Return the case, the window's three turns and its calls as texts."""
    return {
        **case_variables(window.sample),
        "first": turns_text([action_turn(window.first)]),
        "environment": turns_text(window.environment),
        "second": turns_text([action_turn(window.second)]),
        "calls": calls_text(calls_of(window)),
    }


# --- training items ----------------------------------------------------------------------------


def plan_target(plan: RewritePlan, language: Language) -> tuple[TargetPart, ...]:
    """Return the parts a~_t, q~_{t+1}, a~_{t+1}: plan_2 is split where its decision begins ("therefore, I can")."""
    cut = decision_at(plan.plan_2, language)
    return (
        TargetPart(part="action", text=f"<plans><plan_1>{plan.plan_1}</plan_1>"),
        TargetPart(part="environment", text=f"<plan_2>{plan.plan_2[:cut]}"),
        TargetPart(part="action", text=f"{plan.plan_2[cut:]}</plan_2></plans><actions>{plan.actions}</actions>"),
    )


def plan_item(sample: ServiceSample, plan: RewritePlan, language: Language) -> SftItem:
    return SftItem(kind="patm", sample=sample, target=plan_target(plan, language))


def kept_plans(items: Sequence[WorkItem], done: dict[str, ItemResult], language: Language) -> list[SftItem]:
    """Return the SFT items of the kept plans, in the order of the items."""
    return [
        plan_item(item.content.sample, RewritePlan(**made.kept), language)
        for item in items
        if (made := done[item.id]).kept is not None
    ]
