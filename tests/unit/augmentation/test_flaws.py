"""A scripted teacher with known flaws, over 1,000 windows: every check drops exactly its flaw."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from hamr.augmentation.patm import Patm, PatmRecipe, patm_items
from hamr.augmentation.progress import Progress, summary
from hamr.augmentation.runner import run_recipe
from hamr.types import Answer, Question
from tests.unit.augmentation.plans import CALL, PLANS, UID, Judge, good, pools, rewrite, window


def turned_round(plan_2: str) -> str:
    """First what it indicates, then what is assumed."""
    for assumes, indicates in (("Assuming", "this indicates"), ("假设", "这个说明")):
        plan_2 = plan_2.replace(indicates, "@").replace(assumes, indicates).replace("@", assumes.lower())
    return plan_2


def flawed(language: str) -> dict[str, tuple[str, str | None]]:
    """name of the flaw -> (what the teacher writes, the check that has to drop it)."""
    one, two = PLANS[language]
    english = language == "en"
    return {
        "none": (good(language), None),
        "wrong tag": (good(language).replace("plan_2>", "plan_two>"), "tags"),
        "missing tag": (good(language).replace("</actions>", ""), "tags"),
        "third person": (rewrite("I let the agent look." if english else "我请客服查询。", two), "first_person"),
        "missing therefore": (rewrite(one, two.replace("therefore, " if english else "因此，", "")), "order"),
        "order turned round": (rewrite(one, turned_round(two)), "order"),
        "guesses": (rewrite(one + (" It is probably lost." if english else "大概丢了。"), two), "banned_words"),
        "private number in the plan": (rewrite(one + f" ({UID})", two), "anonymised"),
        "changed parameter": (rewrite(one, two, [{**CALL, "parameters": {"user_id": UID, "limit": 8}}]), "actions"),
        "anonymised parameter": (rewrite(one, two, [{**CALL, "parameters": {"user_id": "x", "limit": 7}}]), "actions"),
    }  # fmt: skip


@pytest.mark.parametrize("language", ["en", "zh"])
async def test_each_check_drops_exactly_its_flaw(tmp_path: Path, language) -> None:
    kinds = flawed(language)
    recipe = PatmRecipe(language=language)
    items = patm_items([window(f"t{n}") for n in range(1000)], recipe, "m")
    flaw_of = {item.id: list(kinds)[n % len(kinds)] for n, item in enumerate(items)}
    judge = Judge()

    async def teacher(question: Question) -> Answer:
        return Answer(text=kinds[flaw_of[question.affinity]][0])

    progress = Progress.of(tmp_path / "p.jsonl", items)
    await run_recipe(items, Patm(recipe), pools(teacher, judge), progress, at_once=64, tell=lambda line: None)
    for item in items:
        made, check = progress.done[item.id], kinds[flaw_of[item.id]][1]
        assert (made.kept is not None, made.reason or None) == (check is None, check), flaw_of[item.id]
    assert len(judge.asked) == 2 * 100, "what the rules drop costs no judge"
    wanted = Counter(check for _, check in kinds.values())
    counted = dict(summary(progress.done.values()))
    assert counted["kept"] == 100
    for check, flaws in wanted.items():
        if check is not None:
            assert counted[f"dropped: {check}"] == 100 * flaws == counted[f"to be repaired: {check}"]
