"""Teacher wordings for generated customers: each check, and the samples that receive them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from hamr.apps.data.recipes.rewording import (
    CustomerText,
    Reword,
    RewordRecipe,
    apply_rewordings,
    field_lost,
    fields_shown,
    message_problem,
    reword_items,
)
from hamr.apps.data.recipes.runner import make_one
from hamr.data.progress import ItemResult
from hamr.data.sage_samples import generate
from hamr.procedures import load_scenario
from hamr.types import Answer, Question
from tests.unit.apps.data.recipes.plans import pools

TELECOM = load_scenario("telecom_package")
SCENARIOS = {"telecom_package": TELECOM}
RECIPE = RewordRecipe()
LEAVE = CustomerText(
    scenario=TELECOM,
    split="train",
    text="I do not want that one, Anna offered 2 better ones.",
    shows={"ApplicationTendency": "Reject"},
    names=("Anna",),
)


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("Not that one please, Anna had 2 that suit me better.", None),
        ("", "teacher: nothing"),
        ("As an AI I do not want anything, Anna, 2.", "out of character"),
        ("I do not want it.\nAnna offered 2.", "several lines"),
        (" ".join(f"w{i}x" for i in range(60)), "too long"),
        ("i do not want that one, anna offered 2 better ones", "unchanged"),
        ("I do not like it, 2 were better.", "name lost"),
        ("I do not like it, Anna offered 3.", "other numbers"),
        ("I like it, Anna offered 2.", "other negations"),
        ("我不要这个，Anna 给了 2 个更好的。", "teacher: other language"),
    ],
)
def test_each_message_check_rejects_its_violation(text: str, check: str | None) -> None:
    found = message_problem(LEAVE, text, "en")
    assert (found and found.check) == check, found


def test_shown_fields_are_detected_in_generated_messages() -> None:
    fields = {"ConsumptionProfile": "Data", "ApplicationTendency": "Agree", "EmotionTag": "Calm"}
    said = "Fine, I take it. I stream all day."
    assert fields_shown(TELECOM, "en", "train", said, fields) == {
        "ConsumptionProfile": "Data",
        "ApplicationTendency": "Agree",
    }
    assert fields_shown(TELECOM, "en", "train", said, {"ConsumptionProfile": "Voice"}) == {}


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", ["telecom_package", "airline_refund"])
def test_generated_dialogues_show_their_fields_in_words(name: str, language: Any) -> None:
    """The checks rely on this: every field that gold marks as shown is detected, and few messages are ambiguous."""
    scenarios = {name: load_scenario(name)}
    made = generate([scenarios[name]], {"train": 60, "validation": 6, "test": 6}, seed=1, language=language)
    recipe = dataclasses.replace(RECIPE, language=language)
    items = {item.content.text: item.content for item in reword_items(made, scenarios, recipe, "by")}
    for sample in made.train:
        turns = [turn.content for turn in sample.history if turn.role == "customer"]
        assert set().union(*(items[text].shows for text in turns)) >= set(sample.meta["fields"])
    assert not [m for m in items.values() if field_lost(m, m.text, language, judged=True) is not None]
    unclear = [m for m in items.values() if field_lost(m, m.text, language, judged=False) is not None]
    assert len(unclear) < 0.3 * len(items)


def test_field_is_kept_only_by_words_of_its_value() -> None:
    message = dataclasses.replace(LEAVE, shows={"ConsumptionProfile": "Data"})
    assert field_lost(message, "Mostly I stream and watch videos.", "en", judged=False) is None
    assert field_lost(message, "Mostly I ring people.", "en", judged=False) is not None
    assert field_lost(message, "Mostly I ring people.", "en", judged=True) is not None
    # New words altogether: only a judge can tell.
    assert field_lost(message, "Netflix eats up my allowance.", "en", judged=False) is not None
    assert field_lost(message, "Netflix eats up my allowance.", "en", judged=True) is None


def labels(**found: str) -> str:
    return json.dumps({"classification": found})


@pytest.mark.parametrize(
    ("judge", "reason"),
    [
        (labels(ApplicationTendency="Reject"), ""),
        (labels(ApplicationTendency="Agree"), "judge: reads another field"),
        ("I think so", "judge: unparsable"),
    ],
)
async def test_judge_must_detect_the_same_fields(judge: str, reason: str) -> None:
    asked = []

    async def teacher(question: Question) -> Answer:
        asked.append(question)
        return Answer(text="That is not for me, Anna had 2 nicer ones.")

    async def judged(question: Question) -> Answer:
        asked.append(question)
        return Answer(text=judge)

    recipe = dataclasses.replace(RECIPE, judged=True)
    [item] = [i for i in reword_items(_one_message(), SCENARIOS, recipe, "by") if i.content.text == LEAVE.text]
    made = await make_one(dataclasses.replace(item, content=LEAVE), Reword(recipe), pools(teacher, judged))
    assert made.reason == reason
    assert (made.kept is None) == bool(reason)
    assert asked[0].prompt == "sage_reword.en" and asked[0].variables["message"] == LEAVE.text
    assert asked[1].prompt == "sage_heard.en" and "Reject" in asked[1].variables["fields"]


def _one_message() -> Any:
    made = generate([TELECOM], {"train": 1, "validation": 0, "test": 0}, seed=0)
    [sample] = made.train
    turn = dataclasses.replace(sample.history[0], content=LEAVE.text)
    return dataclasses.replace(made, train=(dataclasses.replace(sample, history=(turn,)),))


def test_kept_rewordings_reach_all_samples_of_one_split() -> None:
    made = generate([TELECOM], {"train": 8, "validation": 2, "test": 2}, seed=0)
    items = reword_items(made, SCENARIOS, RECIPE, "by")
    done = {item.id: ItemResult(kept={"text": f"Said anew number {n}."}) for n, item in enumerate(items)}
    taken = next(item for item in items if item.content.split == "train")
    from_test = next(item for item in items if item.content.split == "test")
    done[taken.id] = ItemResult(kept={"text": from_test.content.text})
    after, counts = apply_rewordings(made, SCENARIOS, done, "en")
    assert counts == {"occurs in another split": 1, "in a teacher's words": len(items) - 1}
    customers = [t.content for s in after.train for t in s.history if t.role == "customer"]
    assert all(text.startswith("Said anew") or text == taken.content.text for text in customers)
    assert [s.references for s in after.train] == [s.references for s in made.train]
    agents = [t.content for s in after.train for t in s.history if t.role == "agent"]
    assert agents == [t.content for s in made.train for t in s.history if t.role == "agent"]


def test_rewording_kept_for_two_splits_stays_in_the_first() -> None:
    made = generate([TELECOM], {"train": 2, "validation": 0, "test": 2}, seed=0)
    items = reword_items(made, SCENARIOS, RECIPE, "by")
    done = {item.id: ItemResult(kept={"text": "One and the same."}) for item in items}
    after, counts = apply_rewordings(made, SCENARIOS, done, "en")
    assert {t.content for s in after.train for t in s.history if t.role == "customer"} == {"One and the same."}
    assert all(t.content != "One and the same." for s in after.test for t in s.history)
    assert counts["occurs in another split"] == sum(item.content.split == "test" for item in items)
