"""Decision reasoning: each rule, the judge's verdict, one repair, and the resulting item."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from hamr.apps.data.build_plans import read_decided
from hamr.apps.data.recipes.dra import (
    Decided,
    Dra,
    decided_item,
    dra_items,
    logged_decision,
    rationale_fault,
    with_rationale,
)
from hamr.apps.data.recipes.patm import plan_item
from hamr.apps.data.recipes.patm_checks import RewritePlan, read_plan
from hamr.apps.data.recipes.runner import WritingRecipe, make_one
from hamr.data.progress import ItemResult
from hamr.data.samples import to_json, write_samples
from hamr.data.sft_items import TargetPart, decision_item, item_from_json, item_to_json, write_items
from hamr.data.trajectories import decision_points, trajectory_from_json
from hamr.errors import DataError
from hamr.rewards.written import WrittenPrompt
from tests.unit.apps.data.recipes.plans import PLANS, UID, Judge, Writer, agreement, good, pools, rewrite, rows, window

WHY = (
    "The customer wants to know where the order is and has given an account. The policy says to look it up first, so I "
    "need find_order before I can say anything."
)
WARUM = "客户想知道订单的去向，并已提供账号。按照政策，我必须先查询，因此需要调用 find_order。"
PLAN = read_plan(good())
assert isinstance(PLAN, RewritePlan)
SAMPLE = next(sample for _, sample in decision_points(trajectory_from_json(rows())))


def of_action() -> Decided:
    return logged_decision(SAMPLE)


def of_plan(language: Any = "en") -> Decided:
    plan = read_plan(good(language))
    assert isinstance(plan, RewritePlan)
    return decided_item(plan_item(SAMPLE, plan, language), "i.jsonl:1")


@pytest.mark.parametrize("one", [of_action(), of_plan()])
@pytest.mark.parametrize(
    ("text", "check"),
    [
        (WHY, None),
        ("", "teacher: nothing"),
        ("I'm sorry, but I can't help with that.", "teacher: refused"),
        (WARUM, "teacher: other language"),
        (f"<think>{WHY}</think>", "plain_text"),
        (f"{WHY}\n- first\n- second", "plain_text"),
        (f"# Why\n{WHY}", "plain_text"),
        (f"**Why** {WHY}", "plain_text"),
        ('{"reasoning": "I look"}', "plain_text"),
        ("The customer wants the order, so the tool is called.", "first_person"),
        (f"{WHY} The ground truth says so.", "hindsight"),
        (f"{WHY} That is what plan_1 says.", "hindsight"),
        (f"{WHY} It is 13812345678.", "anonymised"),
        (f"{WHY} It is {UID}.", "anonymised"),
    ],
)
def test_each_rationale_rule_rejects_its_violation(one: Decided, text: str, check: str | None) -> None:
    found = rationale_fault(text, one, "en")
    assert (found and found.check) == check


@pytest.mark.parametrize("said", ["mia_k", "shop-7x"])
def test_values_of_ticket_and_earlier_calls_are_private(said: str) -> None:
    """The values do not look private by themselves, and the decided action names neither."""
    called = {**rows(), "ticket": {"product": "shop", "account_name": "shop-7x"}}
    called["turns"][1] = {**called["turns"][1], "parameters": {"user_id": "mia_k"}}
    *_, last = [sample for _, sample in decision_points(trajectory_from_json(called))]
    found = rationale_fault(f"{WHY} It is {said}.", logged_decision(last), "en")
    assert found is not None and (found.check, said in found.detail) == ("anonymised", True)
    assert rationale_fault(WHY, logged_decision(last), "en") is None


def test_chinese_rationale_rules_reject_violations() -> None:
    checks = {
        WARUM: None,
        WARUM.replace("我", ""): "first_person",
        WARUM + "标准答案如此。": "hindsight",
        WHY: "teacher: other language",
    }
    for text, check in checks.items():
        found = rationale_fault(text, of_action(), "zh")
        assert (found and found.check) == check


async def made_of(teacher: Any, judge: Any = None, one: Decided | None = None, language: Any = "en") -> ItemResult:
    recipe = WritingRecipe(language=language)
    (item,) = dra_items([one or of_action()], recipe, "m")
    return await make_one(item, Dra(recipe), pools(teacher, judge))


@pytest.mark.parametrize("one", [of_action(), of_plan()])
async def test_agreeing_rationale_is_kept(one: Decided) -> None:
    teacher, judge = Writer(f"<think>hm</think>{WHY}"), Judge()
    made = await made_of(teacher, judge, one)
    assert made.kept == {"rationale": WHY}
    for question in (*teacher.asked, *judge.asked):
        shown = WrittenPrompt.load(question.prompt).render(question.variables, question.each)[1]["content"]
        assert ("Agent calls find_order" in shown) == (one.plan is None)
        assert (PLANS["en"][1] in shown) == (one.plan is not None)


async def test_disagreeing_rationale_is_rewritten_once() -> None:
    judge = Judge(agrees=agreement("no"))
    teacher = Writer(WHY)
    made = await made_of(teacher, judge)
    assert (made.kept, made.reason) == (None, "judge: disagrees with the plan")
    assert [q.attempt for q in teacher.asked] == [0, 1]
    repaired = await made_of(Writer("No thoughts.", WHY))
    assert repaired.kept
    assert repaired.notes == ("to be repaired: first_person",)


def test_rationale_becomes_an_item_with_parts_of_eq_2_and_3() -> None:
    decision, plan = with_rationale(of_action(), WHY), with_rationale(of_plan("zh"), WHY)
    assert [part.part for part in decision.target] == ["rationale", "action"]
    assert [part.part for part in plan.target] == ["rationale", "action", "environment", "action"]
    for item in (decision, plan):
        assert item.target[0].text == f"<think>{WHY}</think>"
        assert item_from_json(item_to_json(item)) == item


def test_samples_and_items_give_the_same_decisions(tmp_path: Path) -> None:
    assert isinstance(PLAN, RewritePlan)
    write_samples(tmp_path / "s.jsonl", [SAMPLE])
    assert read_decided(tmp_path / "s.jsonl") == [of_action()]
    items = [decision_item(SAMPLE, SAMPLE.references[0].action), plan_item(SAMPLE, PLAN, "en")]
    write_items(tmp_path / "i.jsonl", items)
    assert read_decided(tmp_path / "i.jsonl") == [of_action(), of_plan()]
    with pytest.raises(DataError, match="already has a rationale"):
        decided_item(with_rationale(of_action(), WHY), "i.jsonl:1")
    for target, said in (
        ("<plans>", "is not a plan"),
        (rewrite(*PLANS["en"], '[{"name": 1}]'), "not a JSON list of tool calls"),
    ):
        broken = dataclasses.replace(items[1], target=(TargetPart(part="action", text=target),))
        with pytest.raises(DataError, match=said):
            decided_item(broken, "i.jsonl:1")


def test_two_decisions_of_a_sample_become_two_items() -> None:
    names = [item.id for item in dra_items([of_action(), of_plan(), of_action()], WritingRecipe(), "m")]
    assert names == ["decision/t-1", "patm/t-1", "decision/t-1#2"]
    assert to_json(window().sample)["id"] == "t-1"
