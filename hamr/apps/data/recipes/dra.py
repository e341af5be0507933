"""Decision reasoning (first paper, section 3.2, Eq. 2, Appendix D.3.4): a teacher infers the reasons for a decision.

The rationale is worded as the agent would have thought before the decision. For a decision it explains the action, for
a plan both of its steps. Rules check that the text is usable, is plain text in the first person, does not mention an
answer that it was given, and contains no private value. Then a judge checks that it agrees with the decision. A
rationale that fails is rewritten once, then dropped.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from hamr.apps.data.recipes.patm_checks import RewritePlan, known_private, read_plan
from hamr.apps.data.recipes.runner import Desk, WritingRecipe
from hamr.apps.data.recipes.teachers import CheckFailure, teacher_problem, without_thought
from hamr.data.actions import parse_action
from hamr.data.pii import private_in
from hamr.data.progress import ItemResult, WorkItem, item_key
from hamr.data.rendering import turns_text
from hamr.data.sft_items import SftItem, TargetPart, decision_item, item_to_json
from hamr.data.trajectories import action_turn
from hamr.errors import DataError
from hamr.prompting.reading import TEXT, choice, final_object, object_schema, reason
from hamr.rewards.questions import case_variables
from hamr.types import Action, Language, MalformedResponse, Question, ServiceSample, ToolCall

_NOT_PLAIN = re.compile(r"</?[A-Za-z_][\w-]*\s*/?>|```|^\s*(?:#{1,6} |[-*•] |\d+[.)] |\|)|\*\*|^\s*[{\[]", re.MULTILINE)
_FIRST_PERSON = {"en": re.compile(r"\b(?:I|my|me)\b"), "zh": re.compile("我")}
_HINDSIGHT = {
    "en": re.compile(r"\b(?:ground truth|standard answer|reference (?:answer|reply|action)|given (?:plan|action|answer)"
                     r"|plan_[12])\b", re.IGNORECASE),
    "zh": re.compile("标准答案|参考答案|参考回复|给定的(?:规划|动作|回复)|plan_[12]|ground truth", re.IGNORECASE),
}  # fmt: skip
_AGREES_SCHEMA = object_schema(reason=TEXT, agrees={"enum": ["yes", "no"]})
_YES_NO = {"yes": "yes", "是": "yes", "no": "no", "否": "no"}


@dataclass(frozen=True, kw_only=True)
class Decided:
    """A decision to explain: an action, or a plan with its training target and its tool calls."""

    sample: ServiceSample
    action: Action | None = None
    plan: RewritePlan | None = None
    target: tuple[TargetPart, ...] = ()
    calls: tuple[ToolCall, ...] = ()


def logged_decision(sample: ServiceSample) -> Decided:
    """Return a sample's logged action as a decision."""
    return _as_decision(sample, sample.references[0].action)


def _as_decision(sample: ServiceSample, action: Action) -> Decided:
    return Decided(sample=sample, action=action, calls=(action,) if isinstance(action, ToolCall) else ())


def decided_item(item: SftItem, where: str) -> Decided:
    """Return an SFT item's decision. Raises DataError for one that has a rationale, or whose plan cannot be read."""
    if item.kind == "decision":
        action = parse_action(item.text)
        assert not isinstance(action, MalformedResponse), "checked when it was read"
        return _as_decision(item.sample, action)
    if item.kind != "patm":
        raise DataError(f"{where}: kind", item.kind, "already has a rationale; give decision and patm items")
    plan = read_plan(item.text)
    if isinstance(plan, CheckFailure):
        raise DataError(f"{where}: target", item.text, f"is not a plan ({plan.detail})")
    try:
        calls = tuple(ToolCall(name=c["name"], parameters=dict(c["parameters"])) for c in json.loads(plan.actions))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{where}: target", plan.actions, "its actions are not a JSON list of tool calls") from error
    return Decided(sample=item.sample, plan=plan, target=item.target, calls=calls)


def dra_items(found: Sequence[Decided], recipe: WritingRecipe, by: str) -> list[WorkItem]:
    """Return items named by kind and sample; further decisions of a sample are numbered."""
    items: dict[str, WorkItem] = {}
    for one in found:
        name = f"{'patm' if one.plan else 'decision'}/{one.sample.id}"
        count = 2
        while name in items:
            name, count = f"{name.partition('#')[0]}#{count}", count + 1
        row = item_to_json(with_rationale(one, "-"))
        items[name] = WorkItem(id=name, key=item_key("dra", row, dataclasses.asdict(recipe), by), content=one)
    return list(items.values())


@dataclass(frozen=True)
class Dra:
    """The recipe's steps for one decision or plan."""

    recipe: WritingRecipe

    async def __call__(self, item: WorkItem, desk: Desk) -> ItemResult:
        one: Decided = item.content

        async def check(text: str) -> str | CheckFailure:
            rationale = without_thought(text)
            fault = rationale_fault(rationale, one, self.recipe.language)
            return fault or await self._disagreement(one, rationale, desk) or rationale

        def question(shown: dict[str, str], attempt: int) -> Question:
            return self.recipe.question(one.sample, "dra", {**decided_variables(one), **shown}, attempt)

        return ItemResult(kept={"rationale": await desk.ask_until_valid("reason", question, check)})

    async def _disagreement(self, one: Decided, rationale: str, desk: Desk) -> CheckFailure | None:
        def ask(attempt: int) -> Question:
            return Question(
                variables={**decided_variables(one), "reasoning": rationale},
                affinity=one.sample.id,
                prompt=f"dra_check.{self.recipe.language}",
                schema=_AGREES_SCHEMA,
                attempt=attempt,
            )

        agrees, why = await desk.read_judge("agreement", ask, _read_agreement)
        return None if agrees else CheckFailure(check="judge: disagrees with the plan", detail=why)


def _read_agreement(text: str) -> tuple[bool, str]:
    """Return (True if the rationale agrees with the plan, the reason). Raises VerdictUnparsable."""
    answer = final_object(text, ("reason", "agrees"))
    return choice(answer["agrees"], _YES_NO) == "yes", reason(answer["reason"])


def decided_variables(one: Decided) -> dict[str, str]:
    """Return the case and the decision: `first` now, `then` afterwards ("" for a decision)."""
    if one.plan is not None:
        return {**case_variables(one.sample), "first": one.plan.plan_1, "then": one.plan.plan_2}
    assert one.action is not None, "a decision or a plan"
    return {**case_variables(one.sample), "first": turns_text([action_turn(one.action)]), "then": ""}


def rationale_fault(text: str, one: Decided, language: Language) -> CheckFailure | None:
    """Return the first rule that fails: unusable, not plain text, no first person, hindsight, a private value."""
    problem = teacher_problem(text, language)
    if problem is not None:
        return problem
    marked = _NOT_PLAIN.search(text)
    if marked:
        return CheckFailure(check="plain_text", detail=f"has {marked.group().strip()!r}")
    if not _FIRST_PERSON[language].search(text):
        return CheckFailure(check="first_person", detail=f"never says {'I' if language == 'en' else '我'}")
    hindsight = hindsight_fault(text, language)
    if hindsight:
        return hindsight
    private = private_in(text, known_private(one.sample, one.calls))
    return CheckFailure(check="anonymised", detail=f"has {private!r}") if private is not None else None


def hindsight_fault(text: str, language: Language) -> CheckFailure | None:
    """Return a fault where thoughts refer to the decision, which has not been made at that point."""
    found = _HINDSIGHT[language].search(text)
    return CheckFailure(check="hindsight", detail=f"speaks of {found.group()!r}") if found else None


def with_rationale(one: Decided, rationale: str) -> SftItem:
    """Return the SFT item: `decision_dra`, or `patm_dra` with the plan's own target after the rationale."""
    if one.plan is not None:
        thought = TargetPart(part="rationale", text=f"<think>{rationale}</think>")
        return SftItem(kind="patm_dra", sample=one.sample, target=(thought, *one.target))
    assert one.action is not None, "a decision or a plan"
    return decision_item(one.sample, one.action, rationale)
