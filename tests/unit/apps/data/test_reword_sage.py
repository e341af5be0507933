"""`hamr data sage teacher=...` with scripted teachers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from hamr.cli import main
from hamr.types import Answer, Question

SIZES = ["data.sage.train=6", "data.sage.validation=2", "data.sage.test=2"]


def made(folder: Path, *more: str) -> int:
    return main(["data", "sage", "scenario=telecom_package", "pools=sage_small", f"output={folder}", *SIZES, *more])


def customers(folder: Path, split: str = "train") -> list[str]:
    rows = [json.loads(line) for line in (folder / f"{split}.jsonl").read_text().splitlines()]
    return [turn["content"] for row in rows for turn in row["history"] if turn["role"] == "customer"]


@pytest.fixture
def teacher(monkeypatch: pytest.MonkeyPatch) -> list[Question]:
    """Adds words that change nothing that a message shows; every third time it says nothing."""
    asked: list[Question] = []

    async def ask(question: Question) -> Answer:
        asked.append(question)
        said = f"{question.variables['message']} Okay then please."
        return Answer(text="" if len(asked) % 3 == 0 else said)

    def pools(config: Any, names: Any, work: Any, **_: Any) -> Any:
        return asyncio.run(work(dict.fromkeys(names, ask)))

    monkeypatch.setattr("hamr.apps.data.recipe_job.with_pools", pools)
    return asked


def test_kept_rewordings_are_applied_and_dropped_ones_counted(
    tmp_path: Path, teacher: list[Question], capsys: Any
) -> None:
    assert made(tmp_path / "plain") == 0
    assert made(tmp_path / "taught", "teacher=talk") == 0
    before, after = customers(tmp_path / "plain"), customers(tmp_path / "taught")
    assert len(before) == len(after)
    assert all(new in (old, f"{old} Okay then please.") for old, new in zip(before, after, strict=True))
    assert before != after
    shown = capsys.readouterr().out
    assert "kept" in shown and "dropped" in shown and "in a teacher's words" in shown
    records = [json.loads(line) for line in (tmp_path / "taught" / "reworded.records.jsonl").read_text().splitlines()]
    assert {bool(record["kept"]) for record in records} == {True, False}
    sentences = {s: set(" ".join(customers(tmp_path / "taught", s)).split(".")) for s in ("train", "test")}
    assert " Okay then please" not in sentences["train"] & sentences["test"]


def test_noisy_log_has_the_rewordings_too(tmp_path: Path, teacher: list[Question]) -> None:
    assert made(tmp_path, "teacher=talk", "data.sage.noise=0.4") == 0
    assert customers(tmp_path, "sft") == customers(tmp_path, "train")
    assert any("Okay then please." in message for message in customers(tmp_path, "sft"))


def test_repeated_command_asks_no_further_questions(tmp_path: Path, teacher: list[Question]) -> None:
    made(tmp_path, "teacher=talk")
    first = customers(tmp_path)
    teacher.clear()
    assert made(tmp_path, "teacher=talk", "overwrite=true") == 0
    assert not teacher and customers(tmp_path) == first


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["judge=judge"], "give teacher=<pool>"),
        (["teacher=nobody"], "no such pool"),
        (["teacher=reranker"], "cannot write"),
        (["teacher=talk", "judge=nobody"], "no such pool"),
        (["teacher=talk", "temperature=9"], "must be between 0 and 2"),
        (["teacher=talk", "max_new_tokens=0"], "must be 1 or more"),
        (["techer=judge"], "did you mean teacher=...?"),
    ],
)
def test_bad_input_is_reported_in_one_line(tmp_path: Path, capsys: Any, args: list[str], said: str) -> None:
    assert made(tmp_path, *args) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not list(tmp_path.glob("*.jsonl"))
