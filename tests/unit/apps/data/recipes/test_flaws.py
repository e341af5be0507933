"""Scripted teachers and judges with known flaws, over 1,000 items per recipe: every check drops exactly its flaw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from hamr.apps.data.recipes.dra import Dra, dra_items, logged_decision
from hamr.apps.data.recipes.patm import PLANNING_SCORES, REWRITE_SCORES, Patm, patm_items
from hamr.apps.data.recipes.runner import Make, WritingRecipe, run_recipe
from hamr.data.progress import WorkItem, WorkProgress, summary
from hamr.types import Answer, Question
from tests.unit.apps.data.recipes.plans import (
    CALL,
    PLANS,
    UID,
    Judge,
    agreement,
    good,
    planning_verdict,
    pools,
    rewrite,
    rewrite_verdict,
    window,
)
from tests.unit.apps.data.recipes.thoughts import REFUSED

Flaws = Mapping[str, tuple[Mapping[str, str], str | None]]
"""Name of the flaw -> (faulty answer by the prompt's stem; the check that has to drop it)."""

WHY = {
    "en": "The customer gives an account and asks where the order is, so I need find_order before I can say anything.",
    "zh": "客户已提供账号并询问订单去向，因此我必须先调用 find_order 查询，才能答复。",
}


def swap_order(plan_2: str) -> str:
    """First what it indicates, then what is assumed."""
    for assumes, indicates in (("Assuming", "this indicates"), ("假设", "这个说明")):
        plan_2 = plan_2.replace(indicates, "@").replace(assumes, indicates).replace("@", assumes.lower())
    return plan_2


def plan_flaws(language: str) -> Flaws:
    one, two = PLANS[language]
    english = language == "en"
    written = {
        "none": (good(language), None),
        "nothing": (" \n", "teacher: nothing"),
        "refuses": (REFUSED[language], "teacher: refused"),
        "loops": (rewrite(one, two * 9), "teacher: loops"),
        "changes language": (good("zh" if english else "en"), "teacher: other language"),
        "wrong tag": (good(language).replace("plan_2>", "plan_two>"), "tags"),
        "missing tag": (good(language).replace("</actions>", ""), "tags"),
        "third person": (rewrite("I let the agent look." if english else "我请客服查询。", two), "first_person"),
        "missing therefore": (rewrite(one, two.replace("therefore, " if english else "因此，", "")), "order"),
        "order turned round": (rewrite(one, swap_order(two)), "order"),
        "guesses": (rewrite(one + (" It is probably lost." if english else "大概丢了。"), two), "banned_words"),
        "private number in the plan": (rewrite(one + f" ({UID})", two), "anonymised"),
        "a phone number that the ticket has not": (rewrite(one + " 13812345678", two), "anonymised"),
        "changed parameter": (rewrite(one, two, [{**CALL, "parameters": {"user_id": UID, "limit": 8}}]), "actions"),
        "anonymised parameter": (rewrite(one, two, [{**CALL, "parameters": {"user_id": "x", "limit": 7}}]), "actions"),
        "no call": (rewrite(one, two, []), "actions"),
    }  # fmt: skip
    judged = {
        "judge's babble": ({"patm_rewrite_check": "Good."}, "judge: unparsable"),
        **{name: ({"patm_rewrite_check": rewrite_verdict(**{name: 0})}, f"judge: {name}") for name in REWRITE_SCORES},
        **{name: ({"patm_plan_check": planning_verdict(**{name: 0})}, f"judge: {name}") for name in PLANNING_SCORES},
    }
    return {**{name: ({"patm_rewrite": text}, check) for name, (text, check) in written.items()}, **judged}


def rationale_flaws(language: str) -> Flaws:
    why, english = WHY[language], language == "en"
    written = {
        "none": (why, None),
        "nothing": ("", "teacher: nothing"),
        "refuses": (REFUSED[language], "teacher: refused"),
        "loops": (why * 9, "teacher: loops"),
        "changes language": (WHY["zh" if english else "en"], "teacher: other language"),
        "markup": (f"**{why}**", "plain_text"),
        "a list": (f"{why}\n- {why}", "plain_text"),
        "nobody speaks": (why.replace("I ", "one " if english else "").replace("我", ""), "first_person"),
        "hindsight": (f"{why} {'The given answer fits.' if english else '给定的回复合适。'}", "hindsight"),
        "private number": (f"{why} ({UID})", "anonymised"),
    }
    return {
        **{name: ({"dra": text}, check) for name, (text, check) in written.items()},
        "disagrees": ({"dra_check": agreement("no")}, "judge: disagrees with the plan"),
        "judge's babble": ({"dra_check": "Yes."}, "judge: unparsable"),
    }


async def check_dropped_flaws(
    kinds: Flaws, items: list[WorkItem], make: Make, good_text: Mapping[str, str], path: Path
) -> Judge:
    """Deals the flaws out over the items and compares what became of each; gives the judge that was asked."""
    names = list(kinds)
    flaw_of = {item.id: names[n % len(names)] for n, item in enumerate(items)}
    named = {item.id.rpartition("/")[2]: item.id for item in items}
    judge = Judge()

    def said(question: Question) -> str | None:
        return kinds[flaw_of[named[question.affinity]]][0].get(question.prompt.partition(".")[0])

    async def teacher(question: Question) -> Answer:
        text = said(question)
        return Answer(text=good_text[question.prompt.partition(".")[0]] if text is None else text)

    async def judging(question: Question) -> Answer:
        answer, text = await judge(question), said(question)
        return answer if text is None else Answer(text=text)

    progress = WorkProgress.of(path, items)
    await run_recipe(items, make, pools(teacher, judging), progress, at_once=64, tell=lambda line: None)
    for item in items:
        made, check = progress.done[item.id], kinds[flaw_of[item.id]][1]
        assert (made.kept is not None, made.reason or None) == (check is None, check), flaw_of[item.id]
    wanted = Counter(f"dropped: {check}" for name in flaw_of.values() if (check := kinds[name][1]))
    counted = dict(summary(progress.done.values()))
    assert counted["kept"] == len(items) - wanted.total()
    assert {what: count for what, count in counted.items() if what.startswith("dropped: ")} == wanted
    repairs = {f"dropped: {what.removeprefix('to be repaired: ')}" for what in counted if what.startswith("to be")}
    assert repairs == set(wanted) - {"dropped: judge: unparsable"}, "each was shown its fault once"
    return judge


@pytest.mark.parametrize("language", ["en", "zh"])
async def test_each_check_of_plans_drops_exactly_its_flaw(tmp_path: Path, language) -> None:
    kinds, recipe = plan_flaws(language), WritingRecipe(language=language)
    items = patm_items([window(f"t{n}") for n in range(1000)], recipe, "m")
    judge = await check_dropped_flaws(
        kinds, items, Patm(recipe), {"patm_rewrite": good(language)}, tmp_path / "p.jsonl"
    )
    seen = {question.affinity for question in judge.asked}
    judged = [name for name, (said, check) in kinds.items() if check is None or "patm_rewrite" not in said]
    places = [n for n in range(1000) if list(kinds)[n % len(kinds)] in judged]
    assert seen == {items[n].id for n in places}, "what the rules drop costs no judge"


@pytest.mark.parametrize("language", ["en", "zh"])
async def test_each_check_of_rationales_drops_exactly_its_flaw(tmp_path: Path, language) -> None:
    kinds, recipe = rationale_flaws(language), WritingRecipe(language=language)
    items = dra_items([logged_decision(window(f"t{n}").sample) for n in range(1000)], recipe, "m")
    await check_dropped_flaws(kinds, items, Dra(recipe), {"dra": WHY[language]}, tmp_path / "p.jsonl")
