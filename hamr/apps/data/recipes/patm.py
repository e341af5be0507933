"""Planning-aware trajectories (first paper, section 3.2, Eq. 3, Appendix D.3.2): a teacher rewrites logged turns as a
plan.

The turns after a decision point, (a_t, q_{t+1}, a_{t+1}), become a plan in two steps with the tool calls:

    plan_1   a~_t: what I do now, and why; from the first turn alone
    plan_2   q~_{t+1} and a~_{t+1}: assuming what came back, this indicates ..., therefore, I can ...
    actions  the tool calls of both turns, unchanged

Rules check first (`patm_checks`), then a judge twice. The paper gives no threshold for the five scores of the rewrite
check (Appendix D.3.3); a plan passes with all five, and with all three of the planning check (D.3.5). A plan that fails
is rewritten once, given its fault; if it fails again, it is dropped by that check.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hamr.apps.data.recipes.patm_checks import RewritePlan, calls_of, calls_text, decision_at, plan_fault, read_plan
from hamr.apps.data.recipes.runner import Desk, WritingRecipe
from hamr.apps.data.recipes.teachers import CheckFailure, teacher_problem
from hamr.data.progress import ItemResult, WorkItem, item_key
from hamr.data.rendering import turns_text
from hamr.data.samples import to_json, turn_json
from hamr.data.sft_items import SftItem, TargetPart
from hamr.data.trajectories import Window, action_turn
from hamr.errors import VerdictUnparsable
from hamr.prompting.reading import TEXT, Schema, final_object, object_schema, reason
from hamr.rewards.questions import case_variables
from hamr.types import Language, Question, ServiceSample


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
        check = partial(self._check, window, desk)
        plan = await desk.ask_until_valid("rewrite", partial(self.rewrite_question, window), check)
        return ItemResult(kept=dataclasses.asdict(dataclasses.replace(plan, actions=calls_text(calls_of(window)))))

    async def _check(self, window: Window, desk: Desk, text: str) -> RewritePlan | CheckFailure:
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
        return self.recipe.question(window.sample, "patm_rewrite", variables, attempt)

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


def plan_item(sample: ServiceSample, plan: RewritePlan, language: Language) -> SftItem:
    """Return the parts a~_t, q~_{t+1}, a~_{t+1} as an item: plan_2 is split where "therefore, I can" begins."""
    cut = decision_at(plan.plan_2, language)
    target = (
        TargetPart(part="action", text=f"<plans><plan_1>{plan.plan_1}</plan_1>"),
        TargetPart(part="environment", text=f"<plan_2>{plan.plan_2[:cut]}"),
        TargetPart(part="action", text=f"{plan.plan_2[cut:]}</plan_2></plans><actions>{plan.actions}</actions>"),
    )
    return SftItem(kind="patm", sample=sample, target=target)


def kept_plans(items: Sequence[WorkItem], done: dict[str, ItemResult], language: Language) -> list[SftItem]:
    """Return the SFT items of the kept plans, in the order of the items."""
    return [
        plan_item(item.content.sample, RewritePlan(**made.kept), language)
        for item in items
        if (made := done[item.id]).kept is not None
    ]


# --- checks of the judge -------------------------------------------------------------------------

REWRITE_SCORES = ("logic_consistency", "phrasing_check", "plans_anonymized", "actions_preserved", "actions_accuracy")
PLANNING_SCORES = ("compliance_score", "structure_score", "anonymization_score")

_BIT: Schema = {"enum": [0, 1]}
REWRITE_SCHEMA = object_schema(
    reason=TEXT, **dict.fromkeys(REWRITE_SCORES, _BIT), violation_list={"type": "array", "items": TEXT}
)
PLANNING_SCHEMA = object_schema(reason=TEXT, **dict.fromkeys(PLANNING_SCORES, _BIT), total_score={"enum": [0, 1, 2, 3]})


def read_rewrite_check(text: str) -> tuple[dict[str, int], str]:
    """Return ({score: 0 or 1}, the violations). Raises VerdictUnparsable, also for violations without a score of 0."""
    answer = final_object(text, ("reason", *REWRITE_SCORES, "violation_list"))
    scores = _bits(answer, REWRITE_SCORES)
    listed = answer["violation_list"]
    if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
        raise VerdictUnparsable(f"violation_list={listed!r} is not a list of texts")
    if listed and all(scores.values()):
        raise VerdictUnparsable(f"violation_list={listed!r} contradicts the scores {scores}")
    return scores, "; ".join(map(reason, listed))


def read_planning_check(text: str) -> tuple[dict[str, int], str]:
    """Return ({score: 0 or 1}, the reason). Raises VerdictUnparsable, also where the total is not the sum."""
    answer = final_object(text, ("reason", *PLANNING_SCORES, "total_score"))
    scores = _bits(answer, PLANNING_SCORES)
    if answer["total_score"] != sum(scores.values()):
        raise VerdictUnparsable(f"total_score={answer['total_score']!r} is not the sum of {scores}")
    return scores, reason(answer["reason"])


def _bits(answer: Mapping[str, Any], names: Sequence[str]) -> dict[str, int]:
    for name in names:
        if isinstance(answer[name], bool) or answer[name] not in (0, 1):
            raise VerdictUnparsable(f"{name}={answer[name]!r} is neither 0 nor 1")
    return {name: int(answer[name]) for name in names}


_CHECKS = (
    ("rewrite check", "patm_rewrite_check", REWRITE_SCHEMA, read_rewrite_check),
    ("planning check", "patm_plan_check", PLANNING_SCHEMA, read_planning_check),
)
"""The judge's checks: step, prompt, schema and parser of its answer."""
