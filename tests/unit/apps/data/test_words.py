"""`hamr data words` with scripted teachers, and what generated data accept of its files."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hamr.apps.data.recipes.wordings import deal, missing_keys, render_words, slots_of, task_of, text_problem
from hamr.cli import main
from hamr.procedures import load_scenario
from hamr.procedures.words import SPLITS, load_words, needed_wordings, read_words
from hamr.types import Answer, Question

EXAMPLE = Path(__file__).parents[4] / "examples" / "hotel_booking"
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A procedure without wordings."""
    return Path(shutil.copy(EXAMPLE / "hotel_booking.yaml", tmp_path / "mine.yaml"))


@pytest.fixture
def teacher(monkeypatch: pytest.MonkeyPatch) -> list[Question]:
    """Writes different sentences for every task, some of them unusable."""
    asked: list[Question] = []

    async def ask(question: Question) -> Answer:
        asked.append(question)
        if question.prompt.startswith("sage_heard"):
            fields = question.variables["fields"]
            options = [line.strip().partition(":")[0] for line in fields.splitlines() if line.startswith("  ")]
            return Answer(text=json.dumps({"classification": {fields.partition(":")[0]: options[0]}}))
        task = question.variables["task"]
        texts = [f"{task.removesuffix('.').replace(':', ' is').replace('.', ',')} {word}" for word in NUMBERS[:8]]
        return Answer(text=json.dumps({"texts": ["Has {Unknown} in it", "两个字的句子", *texts, texts[0]]}))

    def pools(config: Any, names: Any, work: Any, **_: Any) -> Any:
        return asyncio.run(work(dict.fromkeys(names, ask)))

    monkeypatch.setattr("hamr.apps.data.recipe_job.with_pools", pools)
    return asked


def words(mine: Path, *more: str) -> int:
    return main(["data", "words", f"scenario={mine}", "pools=sage_small", *more])


def test_skeleton_has_every_key_with_its_task(mine: Path) -> None:
    assert words(mine) == 0
    path = mine.parent / "words" / "mine.en.yaml"
    scenario, skeleton = load_scenario(mine), read_words(path)
    assert missing_keys(scenario, skeleton) == needed_wordings(scenario)
    assert path.read_text().count("# What the agent says when it does this: Cancel the booking for a fee.") == 3
    with pytest.raises(Exception, match=r"train\.manner\.couple: None: has no wording"):
        load_words(scenario, "en")


def test_existing_file_is_kept_unless_asked_and_never_loses_texts(mine: Path, capsys: pytest.CaptureFixture) -> None:
    assert words(mine) == 0
    assert words(mine) == 2
    assert "already exists" in capsys.readouterr().err
    path = mine.parent / "words" / "mine.en.yaml"
    path.write_text(path.read_text().replace("rep: []", 'rep: ["Hello, on the road."]', 1))
    assert words(mine, "overwrite=true") == 0
    assert read_words(path).train.manner["rep"] == ("Hello, on the road.",)


def test_teacher_fills_what_is_missing_and_the_data_can_be_generated(mine: Path, teacher: list[Question]) -> None:
    assert words(mine, "teacher=talk") == 0
    scenario = load_scenario(mine)
    assert len(teacher) == len(needed_wordings(scenario))
    filled = load_words(scenario, "en")
    assert all(len(filled.of(split).say["Inform"]) == 2 for split in SPLITS)
    assert not any("Unknown" in text for text in filled.train.say["Inform"])
    teacher.clear()
    assert words(mine, "teacher=talk") == 0 and not teacher, "nothing is missing"


def test_judge_rejects_texts_that_show_another_value(
    mine: Path, teacher: list[Question], capsys: pytest.CaptureFixture
) -> None:
    assert words(mine, "teacher=talk", "judge=talk") == 1
    error = capsys.readouterr().err
    assert "5 wordings of" in error and "show.Flexible.false" in error
    scenario = load_scenario(mine)
    left = missing_keys(scenario, read_words(mine.parent / "words" / "mine.en.yaml"))
    # The scripted judge reads the first option of every field.
    firsts = {(name, next(iter(field.options))) for name, field in scenario.file.fields.items()}
    assert all(key[0] == "show" and key[1:] not in firsts for key in left)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Please cancel {Booking}.", None),
        ("{Booking} is off.", None),
        ("The fee is {amount}.", "unknown variable 'amount'"),
        ("Please {cancel.", "unbalanced braces"),
        ("I [will|shall] not come.", "has alternatives"),
        ("As an AI I have no room.", "As an AI"),
        ("我不来了，请取消。", "teacher: other language"),
        ("word " * 80, "too long"),
    ],
)
def test_unusable_texts_have_a_reason(text: str, problem: str | None) -> None:
    assert text_problem(text, ["Booking"], "en", customer=True) == problem


def test_customers_do_not_use_hidden_variables_and_amounts_belong_to_their_action() -> None:
    scenario = load_scenario(EXAMPLE / "hotel_booking.yaml")
    assert "WantedDatesFree" not in slots_of(scenario, ("opening", "cancel"))
    assert "WantedDatesFree" in slots_of(scenario, ("say", "Decline"))
    assert "amount" in slots_of(scenario, ("say", "CancelWithFee"))
    assert "amount" not in slots_of(scenario, ("say", "CancelFree"))
    assert "could also come a few days earlier" in task_of(scenario, ("show", "Flexible", True), "en")


def test_texts_with_a_sentence_of_another_split_are_not_dealt() -> None:
    keys = {("say", "a"): ["One.", "Two.", "Three."], ("say", "b"): ["Two.", "Four.", "Five.", "Six."]}
    dealt = deal(keys, None, 1)
    assert [dealt[split]["say", "a"] for split in SPLITS] == [["One."], ["Two."], ["Three."]]
    assert [dealt[split]["say", "b"] for split in SPLITS] == [["Four."], ["Two."], ["Five."]]


def test_rendered_words_are_read_back_unchanged(tmp_path: Path) -> None:
    scenario = load_scenario("telecom_package")
    known = load_words(scenario, "en")
    path = tmp_path / "words.yaml"
    path.write_text(render_words(scenario, "en", known, {}))
    assert read_words(path) == known


# --- the shipped example -----------------------------------------------------------------------


def test_example_scenario_generates_data_and_bench_items(tmp_path: Path) -> None:
    scenario = f"scenario={EXAMPLE / 'hotel_booking.yaml'}"
    sizes = ["data.sage.train=24", "data.sage.validation=6", "data.sage.test=6"]
    assert main(["data", "sage", scenario, f"output={tmp_path / 'data'}", *sizes]) == 0
    assert len((tmp_path / "data" / "train.jsonl").read_text().splitlines()) == 24
    counts = ["core=6", "risk=2", "hallucination=2", "planted=2"]
    assert main(["data", "olabench", scenario, f"output={tmp_path / 'bench'}", *counts]) == 0
    given = ["agent=scripted:perfect", "simulator=scripted:worded", "judges=scripted:gold", "resamples=20"]
    assert main(["evaluate", "benchmark=sage", scenario, *given, f"output={tmp_path / 'sage'}"]) == 0
    agent = json.loads((tmp_path / "sage" / "metrics.json").read_text())["agents"]["scripted:perfect"]
    assert agent["average"]["truth"]["mean"] == 100.0
    assert agent["customers"]["faulty"] == 0 and agent["customers"]["disclosed"] == 100.0


def test_example_scenario_has_no_contradictions() -> None:
    scenario = load_scenario(EXAMPLE / "hotel_booking.yaml")
    assert len(scenario.paths()) == 11
    assert all(scenario.levels_of(case.fields, case.system) for case in scenario.cases())
    assert scenario.reference(
        {"Request": "Cancel", "Reason": "Illness", "Proof": "Missing"}, {"Rate": "Saver", "WantedDatesFree": True}
    ) == (["stage1", "stage2", "stage3", "stage4", "stage5"], "AskForProof")
