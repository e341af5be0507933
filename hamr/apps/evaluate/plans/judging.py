"""Plans of a policy and their comparison with gold plans (first paper, Appendix D.3.1 and D.3.6)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hamr.apps.data.recipes.patm_checks import RewritePlan, read_plan
from hamr.apps.data.recipes.teachers import CheckFailure, without_thought
from hamr.config.benchmarks import PlansConfig
from hamr.data.language import language_of
from hamr.data.sft_items import item_messages, numbered_items
from hamr.errors import DataError, VerdictUnparsable
from hamr.prompting.reading import TEXT, choice, final_object, object_schema, reason
from hamr.rewards.questions import case_variables
from hamr.rewards.written import WrittenPrompt
from hamr.types import Judgement, Language, Question, ServiceSample

DIMENSIONS = ("current_decision", "action_details", "subsequent_plan")
KEYS = (*DIMENSIONS, "judge_result")
LEVELS = ("consistent", "partially consistent", "inconsistent")
_NAMES = {name: name for name in LEVELS} | dict(zip(("一致", "部分一致", "不一致"), LEVELS, strict=True))
SCHEMA = object_schema(reason=TEXT, **{key: {"enum": list(_NAMES)} for key in KEYS})

_PLANS = re.compile(
    r"<plans>\s*<plan_1>(?P<plan_1>.+?)</plan_1>\s*<plan_2>(?P<plan_2>.+?)</plan_2>\s*</plans>"
    r"(?:\s*<actions>.*</actions>)?",
    re.DOTALL,
)


@dataclass(frozen=True, kw_only=True)
class GoldPlan:
    """A plan of `hamr data patm` and its decision point. `messages`: the prompt that a policy is trained with."""

    sample: ServiceSample
    plan: RewritePlan
    messages: tuple[Mapping[str, object], ...]

    @property
    def language(self) -> Language:
        return language_of(self.plan.plan_1)


def read_gold(path: Path) -> list[GoldPlan]:
    """Return the plans of a file of SFT items; decisions are left out. Raises DataError."""
    found: dict[str, GoldPlan] = {}
    for number, item in numbered_items(path):
        if not item.kind.startswith("patm"):
            continue
        plan = read_plan(item.text)
        if isinstance(plan, CheckFailure):
            raise DataError(f"{path}:{number}: target", item.text[:120], f"is not a plan ({plan.detail})")
        if item.sample.id in found:
            raise DataError(
                f"{path}:{number}: sample: id", item.sample.id, "already used on an earlier line; remove one"
            )
        found[item.sample.id] = GoldPlan(sample=item.sample, plan=plan, messages=tuple(item_messages(item)))
    if not found:
        raise DataError(
            str(path), None, "has no items of the kinds patm and patm_dra; give the output of `hamr data patm`"
        )
    return list(found.values())


def planning_question(gold: GoldPlan, options: PlansConfig) -> Question:
    """Return the question to a policy: the planning prompt, or the prompt of its training."""
    messages = gold.messages
    if options.prompt == "planning":
        messages = tuple(WrittenPrompt.load(f"planning.{gold.language}").render(case_variables(gold.sample)))
    return Question(
        messages=messages,
        affinity=gold.sample.id,
        temperature=options.temperature,
        max_new_tokens=options.max_new_tokens,
        seed=options.seed,
    )


def plan_of(text: str) -> tuple[str, str] | None:
    """Return the two steps of a policy's plan, None if the text is not one."""
    found = _PLANS.fullmatch(without_thought(text).strip())
    return (found["plan_1"].strip(), found["plan_2"].strip()) if found else None


def judging_question(gold: GoldPlan, plan: tuple[str, str], attempt: int = 0) -> Question:
    """Return the judge's question about a plan."""
    shown = {"plan_1": plan[0], "plan_2": plan[1], "first": gold.plan.plan_1, "then": gold.plan.plan_2}
    return Question(
        variables={**case_variables(gold.sample), **shown},
        affinity=gold.sample.id,
        prompt=f"plan_evaluation.{gold.language}",
        schema=SCHEMA,
        attempt=attempt,
    )


def read_comparison(text: str) -> Judgement:
    """Return the levels of a comparison as labels, in the order of `KEYS`.

    Raises VerdictUnparsable for another form, and for a result that contradicts its dimensions: a plan is consistent
    only if all three are, and inconsistent only if its first decision differs.
    """
    answer = final_object(text, ("reason", *KEYS))
    levels = {key: choice(answer[key], _NAMES) for key in KEYS}
    result = levels["judge_result"]
    whole = all(levels[name] == "consistent" for name in DIMENSIONS)
    if (result == "consistent") != whole or (result == "inconsistent" and levels["current_decision"] == "consistent"):
        raise VerdictUnparsable(f"judge_result={result!r} contradicts {levels}")
    return Judgement(component="plan", labels=tuple(levels[key] for key in KEYS), reason=reason(answer["reason"]))
