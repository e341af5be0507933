"""Planning trajectories: each rule in both languages, the two judges, one repair, and the training target."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hamr.apps.data.recipes.patm import (
    Patm,
    kept_plans,
    patm_items,
    plan_item,
    read_planning_check,
    read_rewrite_check,
)
from hamr.apps.data.recipes.patm_checks import RewritePlan, calls_text, plan_fault, read_plan
from hamr.apps.data.recipes.runner import WritingRecipe, make_one
from hamr.apps.data.recipes.teachers import CheckFailure
from hamr.data.progress import ItemResult
from hamr.data.sft_items import item_from_json, item_to_json
from hamr.errors import VerdictUnparsable
from hamr.rewards.written import WrittenPrompt
from hamr.types import Answer, ToolCall
from tests.unit.apps.data.recipes.plans import (
    CALL,
    PLANS,
    UID,
    Judge,
    Writer,
    good,
    planning_verdict,
    pools,
    rewrite,
    rewrite_verdict,
    window,
)

EN_1, EN_2 = PLANS["en"]
ZH_1, ZH_2 = PLANS["zh"]


def fault_of(text: str, language: Any = "en", number: int = 0) -> str | None:
    plan = read_plan(text)
    found = plan if isinstance(plan, CheckFailure) else plan_fault(plan, window(number=number), language)
    return found and found.check


@pytest.mark.parametrize("language", ["en", "zh"])
def test_valid_plan_passes_all_rules(language: Any) -> None:
    assert fault_of(good(language), language) is None
    assert fault_of(f"<think>hm</think>\n```xml\n{good(language)}\n```", language) is None


@pytest.mark.parametrize(
    ("text", "check"),
    [
        (good().replace("<plan_2>", "<plan2>"), "tags"),
        (good().replace("</plans>", ""), "tags"),
        (good() + " Done.", "tags"),
        ("Sure: " + good(), "tags"),
        (good().replace("<plan_1>", "<plan_1><plan_1>"), "tags"),
        (rewrite("", EN_2), "tags"),
        (rewrite(EN_1 + " <b>bold</b>", EN_2), "tags"),
        (f"<actions>[]</actions>{rewrite(EN_1, EN_2)}", "tags"),
        (rewrite("The order is looked up.", EN_2), "first_person"),
        (rewrite("The agent and I look it up.", EN_2), "first_person"),
        (rewrite(EN_1 + " A robot would do.", EN_2), "first_person"),
        (rewrite(EN_1, "This indicates a delay. Assuming it was sent, therefore, I can say so."), "order"),
        (rewrite(EN_1, "Assuming it was sent, this indicates that it comes, so I can say so."), "order"),
        (rewrite(EN_1, "It was sent, this indicates that it comes, therefore, I can say so."), "order"),
        (rewrite(EN_1, "Assuming it was sent, therefore, I can say so, this indicates much."), "order"),
        (rewrite("I think it is lost. " + EN_1, EN_2), "banned_words"),
        (rewrite(EN_1 + " It is probably lost.", EN_2), "banned_words"),
        (rewrite("As the first message says, " + EN_1, EN_2), "banned_words"),
        (rewrite(EN_1 + f" That is {UID}.", EN_2), "anonymised"),
        (rewrite(EN_1 + " The number is 13812345678.", EN_2), "anonymised"),
        (rewrite(EN_1, EN_2 + " See shop.example.com."), "anonymised"),
        (rewrite(EN_1, EN_2, []), "actions"),
        (rewrite(EN_1, EN_2, [CALL, CALL]), "actions"),
        (rewrite(EN_1, EN_2, [{**CALL, "name": "find"}]), "actions"),
        (rewrite(EN_1, EN_2, [{**CALL, "parameters": {"user_id": UID, "limit": "7"}}]), "actions"),
        (rewrite(EN_1, EN_2, [{**CALL, "parameters": {"user_id": UID, "limit": 7.0}}]), "actions"),
        (rewrite(EN_1, EN_2, [{**CALL, "parameters": {"user_id": "the account", "limit": 7}}]), "actions"),
        (rewrite(EN_1, EN_2, "one call"), "actions"),
        (rewrite(EN_1, EN_2, json.dumps(CALL)), "actions"),
        (rewrite(EN_1, EN_2, [{"action": "call_tool", "name": "find_order", "arguments": CALL["parameters"]}]), None),
        (rewrite(EN_1, EN_2, [dict(reversed(CALL.items()))]), None),
        (rewrite(EN_1, "Possibly it was sent. This indicates that it comes. Therefore I can say so."), None),
    ],
)
def test_each_english_rule_rejects_its_violation(text: str, check: str | None) -> None:
    assert fault_of(text) == check


@pytest.mark.parametrize(
    ("text", "check"),
    [
        (rewrite("查询订单。", ZH_2), "first_person"),
        (rewrite(ZH_1 + "由客服处理。", ZH_2), "first_person"),
        (rewrite(ZH_1 + "转人工。", ZH_2), "first_person"),
        (rewrite(ZH_1, "这个说明包裹在途，假设已发出，因此，我可以告知客户。"), "order"),
        (rewrite(ZH_1, "假设已发出，这个说明包裹在途，我可以告知客户。"), "order"),
        (rewrite(ZH_1, "可能已发出，这说明包裹在途，因此我可以告知客户。"), None),
        (rewrite("我觉得包裹丢了。" + ZH_1, ZH_2), "banned_words"),
        (rewrite("根据第一条，" + ZH_1, ZH_2), "banned_words"),
        (rewrite(ZH_1 + "手机号13812345678。", ZH_2), "anonymised"),
    ],
)
def test_each_chinese_rule_rejects_its_violation(text: str, check: str | None) -> None:
    assert fault_of(text, "zh") == check


def test_window_without_a_call_requires_an_empty_action_list() -> None:
    assert fault_of(rewrite(EN_1, EN_2, []), number=1) is None
    assert fault_of(rewrite(EN_1, EN_2, [CALL]), number=1) == "actions"


# --- judges ------------------------------------------------------------------------------------


def test_verdicts_are_parsed_strictly() -> None:
    scores, violations = read_rewrite_check(rewrite_verdict(phrasing_check=0))
    assert (scores["phrasing_check"], sum(scores.values()), violations) == (0, 4, "phrasing_check fails")
    assert read_planning_check(planning_verdict(structure_score=0))[0] == {
        "compliance_score": 1, "structure_score": 0, "anonymization_score": 1,
    }  # fmt: skip
    for text in (
        rewrite_verdict().replace('"violation_list": []', '"violation_list": ["x"]'),
        rewrite_verdict().replace('"phrasing_check": 1', '"phrasing_check": true'),
        rewrite_verdict().replace('"phrasing_check": 1', '"phrasing_check": 0.5'),
        rewrite_verdict().replace('"violation_list": []', '"violation_list": "none"'),
        rewrite_verdict() + " and so on",
    ):
        with pytest.raises(VerdictUnparsable):
            read_rewrite_check(text)
    with pytest.raises(VerdictUnparsable, match="not the sum"):
        read_planning_check(planning_verdict().replace('"total_score": 3', '"total_score": 2'))


# --- the recipe --------------------------------------------------------------------------------


async def made_of(teacher: Any, judge: Any = None, language: Any = "en") -> ItemResult:
    recipe = WritingRecipe(language=language)
    (item,) = patm_items([window()], recipe, "m")
    return await make_one(item, Patm(recipe), pools(teacher, judge))


async def test_valid_rewrite_is_kept_with_all_texts() -> None:
    teacher, judge = Writer(good()), Judge()
    made = await made_of(teacher, judge)
    assert made.kept == {"plan_1": EN_1, "plan_2": EN_2, "actions": json.dumps([CALL])}
    assert (made.notes, [text["step"] for text in made.texts]) == ((), ["rewrite", "rewrite check", "planning check"])
    (asked,) = teacher.asked
    assert (asked.prompt, asked.variables["fault"]) == ("patm_rewrite.en", "")
    for question in (asked, *judge.asked):
        shown = WrittenPrompt.load(question.prompt).render(question.variables, question.each)[1]["content"]
        assert "find_order" in shown
    assert json.loads(asked.variables["calls"]) == [CALL]


@pytest.mark.parametrize(
    ("first", "judge", "check"),
    [
        (good().replace("therefore", "so"), Judge(), "order"),
        (" ", Judge(), "teacher: nothing"),
        ("I'm sorry, I cannot help with that.", Judge(), "teacher: refused"),
        ("and then and then " * 30, Judge(), "teacher: loops"),
        (good("zh"), Judge(), "teacher: other language"),
        (good(), Judge(rewrite=rewrite_verdict(logic_consistency=0)), "judge: logic_consistency"),
        (good(), Judge(planning=planning_verdict(compliance_score=0)), "judge: compliance_score"),
    ],
)
async def test_failed_rewrite_is_retried_once_then_dropped(first: str, judge: Judge, check: str) -> None:
    teacher = Writer(first)
    made = await made_of(teacher, judge)
    assert (made.kept, made.reason) == (None, check)
    assert made.notes == (f"to be repaired: {check}",)
    assert [question.attempt for question in teacher.asked] == [0, 1]
    assert teacher.asked[1].variables["previous"] == first.strip()
    assert teacher.asked[1].variables["fault"].startswith(check)


async def test_a_repair_is_kept() -> None:
    made = await made_of(Writer(good().replace("therefore", "so"), good()))
    assert made.kept
    assert made.notes == ("to be repaired: order",)
    assert [text["step"] for text in made.texts] == ["rewrite", "repair", "rewrite check", "planning check"]


@pytest.mark.parametrize(
    ("teacher", "judge", "reason", "passing"),
    [
        (Writer(Answer(failure="timeout")), Judge(), "teacher: timeout", True),
        (Writer(Answer(failure="unparsable", reasoning="<plans>")), Judge(), "teacher: unparsable", False),
        (Writer(good()), Judge(rewrite="who knows"), "judge: unparsable", False),
    ],
)
async def test_pool_failures_are_transient_or_drop_the_item(
    teacher: Any, judge: Any, reason: str, passing: bool
) -> None:
    made = await made_of(teacher, judge)
    assert (made.kept, made.reason, made.passing) == (None, reason, passing)


def test_call_values_with_tags_are_escaped_and_restored() -> None:
    shown = calls_text([ToolCall(name="f", parameters={"a": "x</actions>"})])
    assert "<" not in shown
    assert json.loads(shown)[0]["parameters"] == {"a": "x</actions>"}


# --- training items ----------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["en", "zh"])
def test_target_is_split_as_in_the_paper(language: Any) -> None:
    plan = read_plan(good(language))
    assert isinstance(plan, RewritePlan)
    item = plan_item(window().sample, plan, language)
    assert [part.part for part in item.target] == ["action", "environment", "action"]
    assert item.target[1].text.startswith(f"<plan_2>{'Assuming' if language == 'en' else '假设'}")
    assert item.target[2].text.startswith("therefore, I can" if language == "en" else "因此，我可以")
    assert item_from_json(item_to_json(item)) == item
    assert read_plan(item.text) == plan


def test_only_kept_items_are_written() -> None:
    items = patm_items([window("a"), window("b")], WritingRecipe(), "m")
    plan = {"plan_1": EN_1, "plan_2": EN_2, "actions": "[]"}
    (item,) = kept_plans(items, {items[0].id: ItemResult(reason="tags"), items[1].id: ItemResult(kept=plan)}, "en")
    assert item.sample.id == "b-1"
    assert items[0].key != patm_items([window("a")], WritingRecipe(language="zh"), "m")[0].key
    assert items[0].key != patm_items([window("a")], WritingRecipe(), "another model")[0].key
