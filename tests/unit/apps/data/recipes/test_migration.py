"""Migration: chain before response, the best of several drafts, two judges, bounded rewriting rounds."""

from __future__ import annotations

from typing import Any

import pytest

from hamr.apps.data.recipes.migration import Migration, MigrationRecipe, zero_think_chain
from hamr.apps.data.recipes.teachers import CheckFailure
from hamr.data.progress import ItemResult
from hamr.data.rendering import policy_messages
from hamr.rewards.written import WrittenPrompt
from hamr.types import Answer, Question
from tests.unit.apps.data.recipes.thoughts import (
    PROCESS,
    SAID,
    UID,
    ScriptedModels,
    call_text,
    chain,
    cot,
    learnt,
    made_of,
    quality,
    sample,
)  # fmt: skip

BETTER = "I hear how long you have waited. The parcel is on its way since yesterday; shall I send you the link?"
REFINED = f"{chain()}<response>{BETTER}</response>"


async def migrated(crew: ScriptedModels, **recipe: Any) -> ItemResult:
    made = MigrationRecipe(**recipe)
    return await made_of(Migration(made), made, crew)


async def test_chain_is_generated_before_the_response() -> None:
    crew = ScriptedModels()
    made = await migrated(crew)
    assert made.kept == {"reasoning": learnt(), "response": SAID["en"], "quality": 5, "cot_quality": 5}
    assert crew.steps == ["chain", "response", "dialogue", "cot_quality"], "a 5 ends the sampling"
    shown = [WrittenPrompt.load(q.prompt).render(q.variables)[1]["content"] for _, q in crew.asked]
    assert [PROCESS["en"] in text for text in shown] == [False, True, False, True]
    assert [SAID["en"] in text for text in shown] == [False, False, True, True], "the logged reply is not shown"
    assert [(q.temperature, q.seed) for _, q in crew.asked[:2]] == [(1.0, 0)] * 2
    assert [q.temperature for _, q in crew.asked[2:]] == [None] * 2


async def test_best_draft_is_kept_and_ties_keep_the_first() -> None:
    replies = [f"{word} {SAID['en']}" for word in ("First.", "Second.", "Third.", "Fourth.")]
    crew = ScriptedModels(
        thought_response=replies, dialogue=[quality(3), quality(4), quality(2), quality(4)], cot_quality=[cot(2), cot()]
    )
    made = await migrated(crew, seed=7, expand=False)
    assert made.kept is not None and made.kept["response"] == replies[3], "the second one's chain was not let pass"
    assert [q.seed for q in crew.questions("thought_chain")] == [7, 8, 9, 10]
    judged = [q.variables["response"] for q in crew.questions("cot_quality")]
    assert judged == [f"Agent: {replies[1]}", f"Agent: {replies[3]}"]


async def test_drafts_dropped_by_rules_are_not_judged() -> None:
    crew = ScriptedModels(
        thought_chain=["no tags", chain(), chain(), chain()], thought_response=["<tool_call>", SAID["en"]]
    )
    made = await migrated(crew)
    assert made.kept
    assert made.notes == ("candidates: tags", "candidates: no_action")
    assert crew.steps == ["chain", "chain", "response", "chain", "response", "dialogue", "cot_quality"]
    none = await migrated(ScriptedModels(thought_chain=["no tags", *[chain()] * 3], thought_response=""), refine=2)
    assert (none.kept, none.reason) == (None, "tags"), "the first one's fault; there is nothing to refine"


async def test_refinement_prompt_has_the_best_draft_and_the_verdict() -> None:
    crew = ScriptedModels(
        dialogue=[quality(2, "cold"), quality(3, "too short"), quality(5)],
        thought_response=[SAID["en"], call_text(user_id="u-77")], thought_refine=REFINED,
    )  # fmt: skip
    made = await migrated(crew, candidates=2)
    assert made.kept is not None and made.kept["response"] == BETTER
    assert made.kept["reasoning"] == learnt()
    assert made.notes == ("refined: kept",)
    [asked] = crew.questions("thought_refine")
    assert (asked.variables["response"], asked.variables["call"]) == ("", 'find_order {"user_id": "u-77"}')
    assert asked.variables["fault"] == "judge: dialogue_quality: grade 3 of 5. too short"
    assert asked.variables["reasoning"] == learnt()


async def test_rewriting_of_a_kept_draft_expands_the_set() -> None:
    crew = ScriptedModels(dialogue=[*[quality(4, "a little long")] * 4, quality(5)], thought_refine=REFINED)
    made = await migrated(crew)
    assert made.kept is not None and made.kept["response"] == SAID["en"]
    assert [(one["response"], one["quality"]) for one in made.kept["more"]] == [(BETTER, 5)]
    assert made.notes == ("expanded: kept",)
    [asked] = crew.questions("thought_refine")
    assert asked.variables["fault"] == "judge: dialogue_quality: grade 4 of 5. a little long"


@pytest.mark.parametrize(
    ("refined", "grades", "note"),
    [
        ("no tags", [], "tags"),
        (REFINED, [quality(3)], "judge: dialogue_quality"),
        (f"{chain()}<response>{SAID['en']}</response>", [quality(5)], "no better"),
        (REFINED, ["no grade", "no grade"], "judge: unparsable"),
    ],
)
async def test_kept_draft_stays_alone_where_its_rewriting_fails(refined: str, grades: list[str], note: str) -> None:
    made = await migrated(
        ScriptedModels(dialogue=[quality(4), *grades], thought_refine=refined), candidates=1, min_quality=4
    )
    assert made.kept is not None and "more" not in made.kept
    assert made.notes == (f"expanded: {note}",)


@pytest.mark.parametrize("rounds", [0, 1, 3])
async def test_refinement_rounds_are_bounded(rounds: int) -> None:
    crew = ScriptedModels(dialogue=quality(3), thought_refine=REFINED)
    made = await migrated(crew, candidates=1, refine=rounds)
    assert (made.kept, made.reason) == (None, "judge: dialogue_quality")
    assert [q.attempt for q in crew.questions("thought_refine")] == list(range(rounds))
    assert made.notes == ("refined: judge: dialogue_quality",) * rounds
    shown = [q.variables["response"] for q in crew.questions("thought_refine")]
    assert shown == [SAID["en"], BETTER, BETTER][:rounds], "each round goes on from the one before"


async def test_weak_chain_is_refined_from_its_analysis() -> None:
    crew = ScriptedModels(cot_quality=[cot(5, policy="no"), cot()], thought_refine=REFINED)
    made = await migrated(crew)
    assert made.kept is not None and made.kept["response"] == BETTER
    [asked] = crew.questions("thought_refine")
    assert asked.variables["fault"] == "judge: cot_follows_policy: grade 5 of 5. Looked at".replace(
        "Looked at", "It leaves out the fee."
    )


@pytest.mark.parametrize(
    ("refined", "check"),
    [
        ("", "teacher: nothing"),
        ("I can't help with that.", "teacher: refused"),
        (chain(), "tags"),
        (f"{chain('zh')}<response>{BETTER}</response>", "teacher: other language"),
        (f"{chain()}<response>{SAID['zh']}</response>", "teacher: other language"),
        (f"{chain(process=BETTER)}<response>{BETTER}</response>", "quotes_answer"),
        (f"{chain(process=f'I look up {UID}.')}<response>{BETTER}</response>", "anonymised"),
        (f"{chain()}<response></response>", "teacher: nothing"),
        (f"<process></process><strategy>a</strategy><response>{BETTER}</response>", "empty_chain"),
    ],
)
async def test_refined_draft_passes_the_same_rules(refined: str, check: str) -> None:
    made = await migrated(ScriptedModels(dialogue=quality(3), thought_refine=refined))
    assert (made.kept, made.notes) == (None, (f"refined: {check}",))
    rescued = await migrated(
        ScriptedModels(dialogue=[*[quality(3)] * 4, quality(4)], thought_refine=[refined, REFINED]), refine=2
    )
    assert rescued.kept


async def test_transient_failure_is_not_recorded_as_a_verdict() -> None:
    late = await migrated(ScriptedModels(thought_response=[Answer(failure="unavailable")]))
    assert late.passing
    cut = Answer(failure="unparsable", detail="cut off after 9 tokens")
    made = await migrated(ScriptedModels(thought_response=[cut, SAID["en"]]))
    assert made.kept and made.notes == ("candidates: teacher: unparsable",)


# --- Zero-Think writes the chains --------------------------------------------------------------


async def test_zero_think_prompt_matches_its_training_prompt() -> None:
    crew = ScriptedModels(zero_think=f"<think>{learnt()}</think><answer>Cut off in the mid")
    made = await migrated(crew, zero_think=True, max_new_tokens=99)
    assert made.kept is not None and made.kept["reasoning"] == learnt()
    assert crew.steps == ["zero_think", "response", "dialogue", "cot_quality"]
    [asked] = crew.questions("zero_think")
    assert list(asked.messages) == policy_messages(sample(), "think_answer")
    assert (asked.temperature, asked.max_new_tokens) == (1.0, 99)
    assert made.texts[0]["by"] == "second"


@pytest.mark.parametrize(
    ("answer", "chain_or_check"),
    [
        (Answer(text="<think>a</think><answer>b</answer>"), "a"),
        (Answer(text="a\n</think>\n\n<answer>b"), "a"),
        (Answer(text="<answer>b</answer>", reasoning="a"), "a"),
        (Answer(failure="unparsable", reasoning="<think>a</think><answer>b"), "a"),
        (
            Answer(failure="unparsable", reasoning="<think>a and on", detail="cut off"),
            CheckFailure(check="tags", detail="cut off"),
        ),
        (Answer(text="<answer>b</answer>"), CheckFailure(check="tags", detail="0 x </think>")),
        (Answer(text="<think></think>b"), ""),
    ],
)
def test_zero_think_chain_is_extracted_from_its_answer(answer: Answer, chain_or_check: str | CheckFailure) -> None:
    assert zero_think_chain(answer) == chain_or_check


async def test_zero_think_chain_passes_the_same_rules() -> None:
    for said, check in (
        ("", "empty_chain"),
        (f"{learnt()} {UID}", "anonymised"),
        (learnt("zh"), "teacher: other language"),
    ):
        made = await migrated(ScriptedModels(zero_think=f"<think>{said}</think>"), zero_think=True)
        assert (made.kept, made.reason) == (None, check)


async def test_recipe_uses_prompts_of_its_language() -> None:
    crew = ScriptedModels(thought_chain=chain("zh"), thought_response=SAID["zh"])
    made = MigrationRecipe(language="zh")
    assert (await made_of(Migration(made), made, crew, sample(language="zh"))).kept
    questions: list[Question] = [question for _, question in crew.asked]
    assert all(q.prompt.endswith(".zh") for q in questions)
