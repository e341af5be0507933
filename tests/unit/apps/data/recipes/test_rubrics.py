"""Rubrics by rejection sampling, on a scripted teacher and a scripted judge, and the command around them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hamr.apps.data.recipe_command import RubricsCommand
from hamr.apps.data.recipes.rubrics import (
    Responses,
    RubricRecipe,
    Rubrics,
    contrasts,
    rubric_items,
    with_made,
    with_rubric,
)
from hamr.apps.data.recipes.runner import Pools, make_one, run_recipe
from hamr.apps.data.recipes.teachers import Teacher as Teacher_
from hamr.apps.data.recipes.teachers import Teachers
from hamr.apps.shared.commands import parse, parse_command
from hamr.data.progress import ItemResult, WorkItem, WorkProgress, summary
from hamr.data.samples import read_samples, write_samples
from hamr.errors import BadInput, DataError
from hamr.protocols import Ask
from hamr.rewards.rubric import RubricItem, sample_rubric
from hamr.rewards.written import WrittenPrompt
from hamr.types import Answer, Question, Reference, Reply, ServiceSample, ToolCall

RECIPE = RubricRecipe(candidates=2, fewest_items=2, most_items=4)


def sample(name: str = "s1", said: str = "The fee is 12 euros.", **privileged: Any) -> ServiceSample:
    return ServiceSample(
        id=name, ticket={}, policy="Name the fee.", tools=(), history=(),
        references=(Reference(action=Reply(content=said)),), privileged=privileged,
    )  # fmt: skip


def rubric(*items: tuple[str, float]) -> str:
    written = [{"title": title, "description": f"{title}.", "weight": weight} for title, weight in items]
    return "What differs is the fee. " + json.dumps({"reason": "r", "rubric": written})


SHARP = rubric(("Names 12", 5), ("Invents", -2))
BLUNT = rubric(("Polite", 3), ("Rude", -1))


class Teacher:
    """Says one text per attempt; keeps what it was asked."""

    def __init__(self, *said: str | Answer) -> None:
        self.said, self.asked = said, []

    async def __call__(self, question: Question) -> Answer:
        self.asked.append(question)
        text = self.said[question.attempt % len(self.said)]
        return text if isinstance(text, Answer) else Answer(text=text)


class Judge:
    """Finds "Names 12" only where 12 is named; every other behaviour is there and no error is."""

    def __init__(self) -> None:
        self.asked: list[Question] = []

    async def __call__(self, question: Question) -> Answer:
        self.asked.append(question)
        named = "12" in question.variables["response"]
        there = {True: "met", False: "unmet"}
        checks = {
            e["name"]: "clear" if e["kind"] == "error" else there[named or e["title"] != "Names 12"]
            for e in question.each
        }
        return Answer(text=json.dumps({"reason": "r", "checks": checks}))


async def make(responses: Responses, teacher: Ask, judge: Ask) -> ItemResult:
    pools = Pools(teachers=Teachers({"t": Teacher_(ask=teacher)}), judge=judge)
    return await make_one(WorkItem(id="s1", key="", content=(sample(), responses)), Rubrics(RECIPE), pools)


async def test_most_discriminative_rubric_is_kept() -> None:
    responses = Responses(good=("The fee is 12 euros.",), worse=("Done!", "It is free."))
    for order in ((BLUNT, SHARP), (SHARP, BLUNT)):
        teacher, judge = Teacher(*order), Judge()
        made = await make(responses, teacher, judge)
        assert made.kept is not None
        assert [item["title"] for item in made.kept["items"]] == ["Names 12", "Invents"]
        # Good: all of 7 points of weight. Worse: only the error that is not there, 2 of 7.
        assert made.kept["separation"] == pytest.approx(1 - 2 / 7)
        assert made.notes == ("candidates rejected: separates too little", "kept: a rubric by t")
        assert [q.attempt for q in teacher.asked] == [0, 1]
        assert len(judge.asked) == 6, "two candidates, three responses each"
        shown = {entry["response"] for entry in teacher.asked[0].each}
        assert shown == {"The fee is 12 euros.", "Done!", "It is free."}
        WrittenPrompt.load(teacher.asked[0].prompt).render(teacher.asked[0].variables, teacher.asked[0].each)


@pytest.mark.parametrize(
    ("said", "reason", "passing"),
    [
        ("I would rather not.", "no items could be read", False),
        (rubric(("One", 5)), "not 2 to 4 items", False),
        (rubric(("One", 5), ("Two", 6), ("Three", -3)), "not 2 to 4 items", False),
        (rubric(*((f"T{i}", 1) for i in range(5))), "not 2 to 4 items", False),
        (rubric(("One", 5), ("one", 4)), "two items have one title", False),
        (rubric(("One", -1), ("Two", -2)), "no wanted behaviour", False),
        (rubric(("Half", 2.5), ("Whole", 2)), "not 2 to 4 items", False),
        (BLUNT, "separates too little", False),
        (Answer(failure="unparsable", detail="cut off"), "teacher: unparsable", False),
        (Answer(failure="timeout"), "teacher: timeout", True),
        (Answer(failure="unavailable"), "teacher: unavailable", True),
    ],
)
async def test_rejected_rubric_has_a_reason(said: str | Answer, reason: str, passing: bool) -> None:
    responses = Responses(good=("12",), worse=("no",))
    made = await make(responses, Teacher(said), Judge())
    assert (made.kept, made.reason, made.passing) == (None, reason, passing)
    assert made.notes == (f"candidates rejected: {reason}",) * 2


@pytest.mark.parametrize("said", ["prose", '{"reason": "r", "checks": {"I1": "met"}}', '{"reason": "r", "chec'])
async def test_rubric_the_judge_cannot_apply_is_rejected(said: str) -> None:
    responses = Responses(good=("12",), worse=("no",))
    made = await make(responses, Teacher(SHARP), Teacher(said))
    assert (made.kept, made.reason) == (None, "judge: unparsable")


async def test_teacher_is_not_called_without_a_worse_response() -> None:
    teacher = Teacher(SHARP)
    made = await make(Responses(good=("a",), worse=()), teacher, Judge())
    assert made.reason.startswith("no worse response")
    assert teacher.asked == []


def test_worse_responses_are_given_ones_then_references_of_other_samples() -> None:
    call = ServiceSample(
        id="c", ticket={}, policy="", tools=(), history=(), references=(Reference(action=ToolCall(name="pay")),)
    )
    same = sample("other")
    found = contrasts(sample(negatives=["Go away.", " "]), [call, same], RECIPE)
    assert found.good == ("The fee is 12 euros.",)
    assert found.worse == ("Go away.", '<tool_call>{"name": "pay", "arguments": {}}</tool_call>')
    assert found == contrasts(sample(negatives=["Go away.", " "]), [call, same], RECIPE)
    assert contrasts(sample(), [same], RECIPE).worse == (), "another's reference that is this one's too is not worse"


def test_shared_references_do_not_take_the_place_of_worse_responses() -> None:
    same, other = [sample(f"s{i}", "Sure, done.") for i in range(12)], [sample(f"o{i}", f"Fee {i}.") for i in range(4)]
    for one in same:
        found = contrasts(one, [*same, *other], replace(RECIPE, worse=2)).worse
        assert len(found) == 2 and "Sure, done." not in " ".join(found)


def test_sample_is_never_its_own_worse_response() -> None:
    class Counted(list[ServiceSample]):
        read = 0

        def __getitem__(self, place: Any) -> Any:
            self.read += 1
            return super().__getitem__(place)

        def __iter__(self) -> Any:
            for place in range(len(self)):
                yield self[place]

    samples = Counted(sample(f"s{i}", f"Fee {i}.") for i in range(200))
    found = rubric_items(samples, RECIPE, "m")
    assert samples.read < 200 * 20, "a pass over all for each would be 40,000"
    for item, one in zip(found, samples, strict=True):
        responses = item.content[1]
        others = [other for other in samples if other.id != one.id]
        assert responses == contrasts(one, others, RECIPE), "the same draws as among the others alone"
        assert len(responses.worse) == RECIPE.worse


def test_rubric_is_stored_with_its_sample(tmp_path: Path) -> None:
    items = (
        RubricItem(title="Names 12", description="d", weight=5.0),
        RubricItem(title="x", description="", weight=-2.0),
    )
    write_samples(tmp_path / "s.jsonl", [with_rubric(sample(summary="kept"), items)])
    (again,) = read_samples(tmp_path / "s.jsonl")
    assert sample_rubric(again) == items
    assert again.privileged["summary"] == "kept"


# --- the job -----------------------------------------------------------------------------------


async def run(
    folder: Path, samples: Sequence[ServiceSample], teacher: Any, recipe: RubricRecipe = RECIPE
) -> WorkProgress:
    """Run the job without reading and writing files."""
    items = rubric_items(samples, recipe, "vllm:m/vllm:m")
    progress = WorkProgress.of(folder / "p.jsonl", items)
    pools = Pools(teachers=Teachers({"t": Teacher_(ask=teacher)}), judge=Judge())
    await run_recipe(items, Rubrics(recipe), pools, progress, at_once=4, tell=lambda line: None)
    return progress


async def test_interrupted_job_resumes_unfinished_samples(tmp_path: Path) -> None:
    samples = (sample("a"), sample("b", "Good bye."), sample("c", "It is 12."))

    async def half(question: Question) -> Answer:
        return Answer(failure="unavailable") if question.affinity == "c" else Answer(text=SHARP)

    first = await run(tmp_path, samples, half)
    assert {name: bool(made.kept) for name, made in first.done.items()} == {"a": True, "b": False, "c": False}
    teacher = Teacher(SHARP)
    again = await run(tmp_path, samples, teacher)
    assert {q.affinity for q in teacher.asked} == {"c"}, (
        "what failed in passing is tried again, what was dropped is not"
    )
    assert again.done["a"] == first.done["a"]
    finished = [with_made(s, again.done[s.id]) for s in samples]
    assert [bool(sample_rubric(s)) for s in finished] == [True, False, True]
    other = Teacher(SHARP)
    await run(tmp_path, samples, other, RubricRecipe(candidates=3, fewest_items=2))
    assert {q.affinity for q in other.asked} == {"a", "b", "c"}, "another recipe is another result"


async def test_teachers_write_candidates_in_turn(tmp_path: Path) -> None:
    """Appendix F of the second paper: rubrics of several models, of which the best is selected."""
    recipe = RubricRecipe(candidates=4, fewest_items=2)
    teachers = {"blunt": Teacher_(ask=Teacher(BLUNT)), "sharp": Teacher_(ask=Teacher(SHARP))}
    samples = [sample(name) for name in "abcdef"]
    items = rubric_items([*samples, sample("z", "Good bye.")], recipe, "m")[:-1]
    progress = WorkProgress.of(tmp_path / "p.jsonl", items)
    pools = Pools(teachers=Teachers(teachers), judge=Judge())
    await run_recipe(items, Rubrics(recipe), pools, progress, at_once=1, tell=lambda line: None)
    by = [[t["by"] for t in progress.whole(i.id).texts if t["step"] == "rubric"] for i in items]
    assert all(names in (["blunt", "sharp"] * 2, ["sharp", "blunt"] * 2) for names in by)
    assert len({tuple(names) for names in by}) == 2, "not all samples begin with the same teacher"
    assert dict(summary(progress.done.values()))["kept: a rubric by sharp"] == len(samples)


async def test_writers_see_responses_of_every_teacher(tmp_path: Path) -> None:
    """Appendix F of the second paper: reference responses of several models."""

    class Model(Teacher):
        async def __call__(self, question: Question) -> Answer:
            if question.messages:
                return Answer(text=self.said[0] if isinstance(self.said[0], str) else "")
            self.asked.append(question)
            return Answer(text=SHARP)

    one, other = Model("It costs 12."), Model("<tool_call>{")
    recipe = RubricRecipe(candidates=2, fewest_items=2, responses=2)
    items = rubric_items([sample(), sample("z", "Good bye.")], recipe, "m")[:1]
    progress = WorkProgress.of(tmp_path / "p.jsonl", items)
    pools = Pools(teachers=Teachers({"a": Teacher_(ask=one), "b": Teacher_(ask=other)}), judge=Judge())
    await run_recipe(items, Rubrics(recipe), pools, progress, at_once=1, tell=lambda line: None)
    shown = {entry["response"] for entry in (one.asked + other.asked)[0].each}
    assert shown == {"The fee is 12 euros.", "Good bye.", "It costs 12."}, "what is no action is not shown"
    files = ["input=a.jsonl", "output=b.jsonl"]
    assert parse(RubricsCommand, [*files, "teachers=a,b"]).recipe.responses == 2
    assert parse(RubricsCommand, [*files, "teacher=a"]).recipe.responses == 0


async def test_the_table_counts_kept_dropped_and_rejected(tmp_path: Path) -> None:
    made = await run(tmp_path, (sample("a"), sample("b", "Good bye.")), Teacher(SHARP, BLUNT))
    rows = dict(summary(made.done.values()))
    assert rows["kept"] == 1
    assert rows["dropped: separates too little"] == 1
    assert rows["candidates rejected: separates too little"] == 3
    assert [text["step"] for text in made.whole("a").texts] == ["rubric", "separation", "separation"] * 2


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["output=o.jsonl"], "give input="),
        (["input={ok}"], "give output="),
        (["input={ok}", "output={ok}"], "is the input; name another file"),
        (["input={ok}", "output=o.jsonl", "experiment=smoke"], "of: judge, reranker"),
        (["input={ok}", "output=o.jsonl", "teacher=nobody", "experiment=smoke"], "there are: judge, reranker"),
        (["input={ok}", "output=o.jsonl", "teacher=reranker", "experiment=smoke"], "cannot write"),
        (["input={ok}", "output=o.jsonl", "teacher=judge", "judge=no", "experiment=smoke"], "no such pool"),
        (["input={ok}", "output=o.jsonl", "candidates=none"], "must be a whole number"),
        (["input={ok}", "output=o.jsonl", "candidates=0"], "1 or more"),
        (["input={ok}", "output=o.jsonl", "min_separation=2"], "must be between -1 and 1"),
        (["input={ok}", "output=o.jsonl", "language=fr"], "en or zh"),
        (["input=/none.jsonl", "output=o.jsonl"], "no such file"),
    ],
)
def test_bad_input_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_samples(tmp_path / "ok.jsonl", [sample()])
    with pytest.raises((BadInput, DataError)) as refused:
        parse_command(["data", "rubrics", *(arg.format(ok=tmp_path / "ok.jsonl") for arg in args)]).run()
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "o.jsonl").exists()


def test_default_recipe_matches_the_paper() -> None:
    files = ["input=a.jsonl", "output=b.jsonl"]
    recipe = parse(RubricsCommand, files).recipe
    assert (recipe.fewest_items, recipe.most_items) == (8, 16)
    assert parse(RubricsCommand, [*files, "language=zh", "candidates=6"]).recipe.candidates == 6
