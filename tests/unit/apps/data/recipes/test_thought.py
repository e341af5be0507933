"""Extraction: the rules, the judge of chains, one repair, and the resulting item."""

from __future__ import annotations

from typing import Any

import pytest

from hamr.apps.data.recipes.teachers import CheckFailure
from hamr.apps.data.recipes.thought import Extraction, ThoughtRecipe, renderings, to_record
from hamr.apps.data.recipes.thought_checks import ThoughtDraft, chain_fault, chain_of, quote_fault, response_of
from hamr.data.progress import ItemResult
from hamr.data.sft_items import item_from_json, item_to_json
from hamr.rewards.written import WrittenPrompt
from hamr.types import Answer, Reply, ServiceSample
from tests.unit.apps.data.recipes.thoughts import (
    CALL,
    PROCESS,
    REFUSED,
    SAID,
    STRATEGY,
    UID,
    ScriptedModels,
    call_text,
    chain,
    cot,
    learnt,
    made_of,
    sample,
)  # fmt: skip


def check_of(found: Any) -> str | None:
    return found.check if isinstance(found, CheckFailure) else None


@pytest.mark.parametrize("language", ["en", "zh"])
def test_each_chain_rule_rejects_its_violation(language: Any) -> None:
    one, other = PROCESS[language], "zh" if language == "en" else "en"
    cases = {
        chain(language): None,
        f"<think>hm, <process></think>{chain(language)}": None,
        "": "teacher: nothing",
        REFUSED[language]: "teacher: refused",
        chain(language, REFUSED[language]): "teacher: refused",
        chain(other): "teacher: other language",
        chain(language, one * 9): "teacher: loops",
        one: "tags",
        chain(language).replace("</strategy>", ""): "tags",
        chain(language) + chain(language): "tags",
        f"Here it is: {chain(language)}" if language == "en" else f"如下：{chain(language)}": "tags",
        chain(language, f"{one} <answer>"): "tags",
        f"<process>{one}</process><strategy> </strategy>": "empty_chain",
        f"<process></process><strategy>{STRATEGY[language]}</strategy>": "empty_chain",
        "<process></process><strategy></strategy>": "empty_chain",
        chain(language, one + (" The reference reply is kind." if language == "en" else "参考答案如此。")): "hindsight",
        chain(language, f"{one} 13812345678"): "anonymised",
        chain(language, f"{one} {SAID[language]}"): "quotes_answer",
        chain(language, strategy=SAID[language].upper()): "quotes_answer",
    }  # fmt: skip
    for text, check in cases.items():
        found = chain_of(text, sample(), language, Reply(content=SAID[language]))
        assert (check_of(found), check is None) == (check, isinstance(found, str)), text
    assert chain_of(chain(language), sample(), language) == learnt(language)


def test_values_of_the_call_are_private_in_thoughts() -> None:
    named = f"{learnt()} It is user u-77."
    call = type(CALL)(name="find_order", parameters={"user_id": "u-77"})
    assert chain_fault(named, sample(), "en") is None
    assert check_of(chain_fault(named, sample(), "en", call)) == "anonymised"


def test_short_answers_and_calls_never_count_as_quoted() -> None:
    for short in (Reply(content="Yes, of course."), Reply(content="好的，请稍等"[:5]), CALL):
        assert quote_fault(f"I say: Yes, of course. 好的，请稍等 find_order {UID}", short) is None
    six = Reply(content="one two, three: four five SIX")
    assert check_of(quote_fault("so one two three - four five six!", six)) == "quotes_answer"
    assert quote_fault("one two three four five", six) is None


@pytest.mark.parametrize(
    ("text", "check"),
    [
        (SAID["en"], None),
        (f"<think>hm</think>{SAID['en']}", None),
        (f"One moment. {call_text(user_id='u-77')}", None),
        ("", "teacher: nothing"),
        (SAID["zh"], "teacher: other language"),
        (f"{SAID['en']} " * 9, "teacher: loops"),
        (f"<answer>{SAID['en']}</answer>", "tags"),
        ("<tool_call>find_order", "no_action"),
        (call_text(user_id="a") * 2, "no_action"),
        (call_text(), "tool_call"),
        (call_text(user_id="u-77").replace("find", "lose"), "tool_call"),
        (learnt(), "quotes_answer"),
    ],
)
def test_each_response_rule_rejects_its_violation(text: str, check: str | None) -> None:
    found = response_of(text, learnt(), sample(), "en")
    assert (check_of(found), isinstance(found, ThoughtDraft)) == (check, check is None)


def test_lone_surrogate_is_replaced() -> None:
    found = chain_of(chain(process=f"{PROCESS['en']} \ud83d"), sample(), "en")
    assert found == learnt().replace("\n", " ?\n", 1)


# --- the recipe --------------------------------------------------------------------------------


async def extracted(crew: ScriptedModels, one: ServiceSample | None = None, **recipe: Any) -> ItemResult:
    made = ThoughtRecipe(**recipe)
    return await made_of(Extraction(made), made, crew, one)


async def test_expert_response_is_kept_with_its_chain() -> None:
    crew = ScriptedModels()
    made = await extracted(crew)
    assert made.kept == {"reasoning": learnt(), "response": SAID["en"], "cot_quality": 5}
    assert crew.steps == ["extract", "cot_quality"]
    for (_, question), shown in zip(crew.asked, (SAID["en"], learnt()), strict=True):
        rendered = WrittenPrompt.load(question.prompt).render(question.variables)[1]["content"]
        assert shown in rendered and SAID["en"] in rendered
    called = await extracted(ScriptedModels(), sample(action=CALL))
    assert called.kept is not None and called.kept["response"] == call_text(user_id=UID)


@pytest.mark.parametrize(
    ("verdict", "check"),
    [
        (cot(3), "judge: cot_quality"),
        (cot(complete="no"), "judge: cot_complete_and_clear"),
        (cot(policy="no"), "judge: cot_follows_policy"),
    ],
)
async def test_rejected_chain_is_repaired_once_with_the_reason(verdict: str, check: str) -> None:
    crew = ScriptedModels(cot_quality=verdict)
    made = await extracted(crew)
    assert (made.kept, made.reason, made.notes) == (None, check, (f"to be repaired: {check}",))
    assert crew.steps == ["extract", "cot_quality"] * 2
    again = crew.questions("thought_extract")[1].variables
    assert again["previous"] == chain() and "It leaves out the fee." in again["fault"]
    repaired = await extracted(ScriptedModels(cot_quality=[verdict, cot(4)]))
    assert repaired.kept is not None and repaired.kept["cot_quality"] == 4


async def test_threshold_is_read_from_the_recipe() -> None:
    assert (await extracted(ScriptedModels(cot_quality=cot(3)), min_cot=3)).kept
    assert (await extracted(ScriptedModels(cot_quality=cot(4)), min_cot=5)).reason == "judge: cot_quality"


async def test_unparsable_verdict_is_retried_and_then_drops_the_item() -> None:
    made = await extracted(ScriptedModels(cot_quality=["nonsense", cot()]))
    assert made.kept
    made = await extracted(ScriptedModels(cot_quality="nonsense"))
    assert made.reason == "judge: unparsable"
    late = await extracted(ScriptedModels(cot_quality=[Answer(failure="timeout")]))
    assert late.passing


# --- training items ----------------------------------------------------------------------------


@pytest.mark.parametrize("action", [Reply(content=SAID["en"]), CALL])
def test_one_item_is_rendered_in_each_order(action: Any) -> None:
    made = to_record(learnt(), action, cot_quality=5)
    think, answer = f"<think>{learnt()}</think>", f"<answer>{made['response']}</answer>"
    pre, post = renderings(sample(), made, "pre"), renderings(sample(), made, "post")
    assert [(item.kind, item.text) for item in pre] == [("decision_dra", think + answer)]
    assert [(item.kind, item.text) for item in post] == [("decision_post", answer + think)]
    assert renderings(sample(), made, "hybrid") == [*pre, *post]
    for item in (*pre, *post):
        assert item_from_json(item_to_json(item)) == item
