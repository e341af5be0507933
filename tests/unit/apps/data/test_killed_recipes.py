"""Recipes of `hamr data` that are killed in the middle: the same command then gives the same output."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hamr.cli import main as hamr
from hamr.data.samples import to_json, write_rows, write_samples
from hamr.data.trajectories import trajectory_from_json, write_trajectories
from hamr.protocols import Ask
from hamr.telemetry.ledger import Ledger
from hamr.types import Answer, Question
from tests.unit.apps.data.recipes import plans, test_multigt, test_rubrics, thoughts

Files = Callable[[Path], list[str]]
"""Writes a recipe's inputs into a folder and returns its arguments."""


class Killed(BaseException):
    pass


async def planning(question: Question) -> Answer:
    judge = plans.Judge()
    if question.prompt.partition(".")[0] in judge.said:
        return await judge(question)
    if "calls" not in question.variables:
        return Answer(text="I look the order up first, since the policy wants it.")
    return Answer(text=plans.rewrite(*plans.PLANS["en"], json.loads(question.variables["calls"])))


async def thinking(question: Question) -> Answer:
    return await thoughts.ScriptedModels()(question)


async def expanding(question: Question) -> Answer:
    if question.messages:
        return await test_multigt.ScriptedModel("It has been sent.", "A new one comes.")(question)
    return await (test_multigt.Utility() if question.prompt else test_multigt.Consistency())(question)


async def rating(question: Question) -> Answer:
    if question.messages:
        return Answer(text="It is free.")
    if question.prompt.startswith("rubric_create"):
        items = [("Names 12", 5), ("Invents it", -2), *((f"Is polite {i}", 1) for i in range(6))]
        return Answer(text=test_rubrics.rubric(*items))
    return await test_rubrics.Judge()(question)


async def grading(question: Question) -> Answer:
    label = "factual" if "invented" in question.variables["response"] else "none"
    return Answer(text=json.dumps({"reason": f"it is {label}", "judgment": label}))


def tickets(folder: Path) -> list[str]:
    rows = [{**plans.rows(f"t{i}"), "meta": {"split": "train"}} for i in range(3)]
    write_trajectories(folder / "in.jsonl", [trajectory_from_json(row) for row in rows])
    return ["patm", "teacher=judge"]


def decisions(folder: Path) -> list[str]:
    write_samples(folder / "in.jsonl", [thoughts.sample(name) for name in "abcd"])
    return ["dra", "teacher=judge"]


def experts(folder: Path) -> list[str]:
    decisions(folder)
    return ["thought", "step=extract", "teacher=judge"]


def cases(folder: Path) -> list[str]:
    decisions(folder)
    return ["thought", "step=migrate", "candidates=2", "teacher=judge"]


def rewarded(folder: Path) -> list[str]:
    write_samples(folder / "in.jsonl", [test_multigt.sample(name) for name in "abcd"])
    with Ledger(folder / "ledger.sqlite") as ledger:
        ledger.add([test_multigt.record(name, 0, "We sent it on Monday.", -0.1) for name in "abcd"])
    return ["multigt", "candidates=2", f"ledger={folder}", "teacher=judge"]


def policies(folder: Path) -> list[str]:
    write_samples(folder / "in.jsonl", [test_rubrics.sample(name, f"The fee is 12 euros, {name}.") for name in "abcd"])
    return ["rubrics", "candidates=2", "teacher=judge"]


def responses(folder: Path) -> list[str]:
    row = to_json(test_rubrics.sample())
    write_rows(folder / "in.jsonl", [{**row, "responses": ["fine", "good", "invented", "right"]}])
    return ["hallucination", "judge=judge", "second=other", "refine=false", "+pools.other={role: grader}"]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (tickets, planning),
        (decisions, planning),
        (experts, thinking),
        (cases, thinking),
        (rewarded, expanding),
        (policies, rating),
        (responses, grading),
    ],
)
def test_killed_recipe_gives_the_same_output_after_its_repetition(
    files: Files, says: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Question] = []

    def build(name: str, dies_at: int | None = None) -> dict[str, bytes]:
        """Run the command in a folder and return its files, except for the progress."""
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        asked.clear()

        async def ask(question: Question) -> Answer:
            asked.append(question)
            if len(asked) == dies_at:
                raise Killed
            return await says(question)

        def pools(config: Any, names: Any, work: Any, **_: Any) -> Any:
            return asyncio.run(work(dict.fromkeys(names, ask)))

        monkeypatch.setattr("hamr.apps.data.recipe_job.with_pools", pools)
        recipe, *more = files(folder)
        given = [f"input={folder / 'in.jsonl'}", f"output={folder / 'out'}", "at_once=1", "experiment=smoke"]
        assert hamr(["data", recipe, *given, *more]) == 0
        output = [path for path in folder.rglob("*") if path.is_file() and "out" in path.relative_to(folder).parts[0]]
        return {path.name: path.read_bytes() for path in output if "progress" not in path.name}

    whole = build("whole")
    questions = len(asked)
    assert questions >= 4 and whole
    with pytest.raises(Killed):
        build("killed", questions // 2 + 1)
    assert build("killed") == {name: data.replace(b"/whole/", b"/killed/") for name, data in whole.items()}
    assert len(asked) < questions, "finished items are not asked for again"
