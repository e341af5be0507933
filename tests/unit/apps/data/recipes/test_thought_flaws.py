"""A scripted teacher and judge with known flaws, over 1,000 samples per step: every check drops exactly its flaw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hamr.apps.data.recipes.migration import Migration, MigrationRecipe
from hamr.apps.data.recipes.runner import Make, run_recipe
from hamr.apps.data.recipes.thought import Extraction, ThoughtRecipe, thought_items
from hamr.data.progress import WorkProgress, summary
from hamr.types import Question
from tests.unit.apps.data.recipes.thoughts import (
    PROCESS,
    REFUSED,
    SAID,
    STRATEGY,
    UID,
    ScriptedModels,
    call_text,
    chain,
    cot,
    quality,
    sample,
)  # fmt: skip

Flaw = tuple[Mapping[str, str], str | None]
"""(faulty answer by the prompt's stem; the check that has to drop it)."""


def chain_flaws(language: str) -> dict[str, tuple[str, str]]:
    one, english = PROCESS[language], language == "en"
    return {
        "nothing": ("", "teacher: nothing"),
        "refuses": (REFUSED[language], "teacher: refused"),
        "loops": (chain(language, one * 9), "teacher: loops"),
        "changes language": (chain("zh" if english else "en"), "teacher: other language"),
        "wrong tag": (chain(language).replace("process>", "think>"), "tags"),
        "no tag": (chain(language).replace("</process>", ""), "tags"),
        "a tag inside": (chain(language, f"{one} <answer>"), "tags"),
        "empty chain": (f"<process></process><strategy>{STRATEGY[language]}</strategy>", "empty_chain"),
        "hindsight": (chain(language, f"{one} {'The given answer.' if english else '给定的回复。'}"), "hindsight"),
        "private number": (chain(language, f"{one} ({UID})"), "anonymised"),
        "quotes the answer": (chain(language, f"{one} {SAID[language]}"), "quotes_answer"),
    }  # fmt: skip


def response_flaws(language: str) -> dict[str, tuple[str, str]]:
    return {
        "no response": (" ", "teacher: nothing"),
        "response in another language": (SAID["zh" if language == "en" else "en"], "teacher: other language"),
        "looping response": (SAID[language] * 9, "teacher: loops"),
        "tags in the response": (f"<answer>{SAID[language]}</answer>", "tags"),
        "half a call": ('<tool_call>{"name": "find_order"', "no_action"),
        "a call that no tool admits": (call_text(order="u-77"), "tool_call"),
    }


VERDICTS = {
    "incomplete chain": ({"cot_quality": cot(complete="no")}, "judge: cot_complete_and_clear"),
    "chain against the policy": ({"cot_quality": cot(policy="no")}, "judge: cot_follows_policy"),
    "poor chain": ({"cot_quality": cot(3)}, "judge: cot_quality"),
    "judge of chains babbles": ({"cot_quality": "Good."}, "judge: unparsable"),
}
POOR = {
    "poor response": ({"dialogue": quality(3)}, "judge: dialogue_quality"),
    "dialogue's judge babbles": ({"dialogue": "5"}, "judge: unparsable"),
}


async def check_dropped_flaws(
    kinds: Mapping[str, Flaw], make: Make, recipe: ThoughtRecipe, good: Mapping[str, Any], path: Path
) -> ScriptedModels:
    """Deals the flaws out over 1,000 samples and compares what became of each; gives the crew that was asked."""
    names = list(kinds)
    items = thought_items([sample(f"s{n}", language=recipe.language) for n in range(1000)], recipe, "m")
    flaw_of = {item.id: names[n % len(names)] for n, item in enumerate(items)}

    def says(stem: str) -> Any:
        return lambda question: kinds[flaw_of[question.affinity]][0].get(stem, good[stem])

    crew = ScriptedModels(**{stem: says(stem) for stem in good})
    progress = WorkProgress.of(path, items)
    await run_recipe(items, make, crew.pools, progress, at_once=64, tell=lambda line: None)
    for item in items:
        made, check = progress.done[item.id], kinds[flaw_of[item.id]][1]
        assert (made.kept is not None, made.reason or None) == (check is None, check), flaw_of[item.id]
    wanted = Counter(kinds[flaw][1] for flaw in flaw_of.values())
    counted = dict(summary(progress.done.values()))
    assert counted["kept"] == wanted.pop(None)
    assert {check: counted[f"dropped: {check}"] for check in wanted} == wanted
    return crew


def of_affinity(questions: list[Question]) -> set[str]:
    return {question.affinity for question in questions}


@pytest.mark.parametrize("language", ["en", "zh"])
async def test_extraction_drops_each_flaw_with_its_check(language: Any, tmp_path: Path) -> None:
    kinds: dict[str, Flaw] = {"none": ({}, None), **VERDICTS}
    kinds |= {name: ({"thought_extract": text}, check) for name, (text, check) in chain_flaws(language).items()}
    recipe = ThoughtRecipe(language=language)
    good = {"thought_extract": chain(language), "cot_quality": cot()}
    crew = await check_dropped_flaws(kinds, Extraction(recipe), recipe, good, tmp_path / "p.jsonl")
    judged = of_affinity(crew.questions("cot_quality"))
    assert len(judged) == sum(list(kinds)[n % len(kinds)] in ("none", *VERDICTS) for n in range(1000))


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh"])
async def test_migration_drops_each_flaw_with_its_check(language: Any, tmp_path: Path) -> None:
    kinds: dict[str, Flaw] = {"none": ({}, None), **VERDICTS, **POOR}
    kinds |= {name: ({"thought_chain": text}, check) for name, (text, check) in chain_flaws(language).items()}
    kinds |= {name: ({"thought_response": text}, check) for name, (text, check) in response_flaws(language).items()}
    recipe = MigrationRecipe(language=language, candidates=2, refine=1)
    good = {
        "thought_chain": chain(language), "thought_response": SAID[language],
        "dialogue": quality(), "cot_quality": cot(),
        "thought_refine": f"{chain(language)}<response>{SAID[language]}</response>",
    }  # fmt: skip
    crew = await check_dropped_flaws(kinds, Migration(recipe), recipe, good, tmp_path / "p.jsonl")
    graded = of_affinity(crew.questions("dialogue"))
    assert len(graded) == sum(list(kinds)[n % len(kinds)] in ("none", *VERDICTS, *POOR) for n in range(1000))
