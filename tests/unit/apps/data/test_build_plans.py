"""`hamr data patm` and `hamr data dra` with scripted pools: files, tables, resumption, bad input."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hamr.cli import main as hamr
from hamr.data.sft_items import read_items
from hamr.data.trajectories import trajectory_from_json, write_trajectories
from hamr.types import Answer, Question
from tests.unit.apps.data.recipes.plans import CALL, PLANS, Judge, rewrite, rows

SMOKE = "experiment=smoke"


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Question]]:
    """Scripted pools: `teacher` writes, a good judge judges. Gives the list of questions to teachers."""

    def use(teacher: Callable[[Question], str | Answer]) -> list[Question]:
        asked: list[Question] = []
        judge = Judge()

        async def ask(question: Question) -> Answer:
            if question.prompt.partition(".")[0] in judge.said:
                return await judge(question)
            asked.append(question)
            said = teacher(question)
            return said if isinstance(said, Answer) else Answer(text=said)

        def pools(config: Any, names: Any, work: Any, **_: Any) -> Any:
            return asyncio.run(work(dict.fromkeys(names, ask)))

        monkeypatch.setattr("hamr.apps.data.recipe_job.with_pools", pools)
        return asked

    return use


def plan_for(question: Question) -> str:
    return rewrite(*PLANS["en"], json.loads(question.variables["calls"]))


@pytest.fixture
def tickets(tmp_path: Path) -> Path:
    path = tmp_path / "trajectories.jsonl"
    splits = ["train", "train", "test"]
    write_trajectories(
        path, [trajectory_from_json({**rows(f"t{i}"), "meta": {"split": split}}) for i, split in enumerate(splits)]
    )
    return path


def patm(tickets: Path, *more: str) -> int:
    output = tickets.with_name("plans.jsonl")
    return hamr(["data", "patm", f"input={tickets}", f"output={output}", "teacher=judge", SMOKE, *more])


def test_tickets_become_plans_and_then_reasoned_plans(tickets: Path, scripted: Any, capsys: Any) -> None:
    asked = scripted(plan_for)
    assert patm(tickets) == 0
    shown = capsys.readouterr().out
    assert "2 of 3 tickets (split=train): 4 complete windows, 2 incomplete: the ticket ends" in shown
    items = read_items(tickets.with_name("plans.jsonl"))
    assert [(item.kind, item.sample.id) for item in items] == [
        ("patm", "t0-1"), ("patm", "t0-3"), ("patm", "t1-1"), ("patm", "t1-3"),
    ]  # fmt: skip
    records = [json.loads(line) for line in tickets.with_name("plans.jsonl.records.jsonl").read_text().splitlines()]
    assert [record["id"] for record in records] == [item.sample.id for item in items]
    assert all([text["step"] for text in r["texts"]] == ["rewrite", "rewrite check", "planning check"] for r in records)
    assert json.loads(records[0]["kept"]["actions"]) == [CALL]
    assert len(asked) == 4

    scripted(lambda question: "I look the order up first, since the policy wants it.")
    reasoned = tickets.with_name("reasoned.jsonl")
    args = [f"input={tickets.with_name('plans.jsonl')}", f"output={reasoned}", "teachers=judge", "at_once=2", SMOKE]
    assert hamr(["data", "dra", *args]) == 0
    assert [item.kind for item in read_items(reasoned)] == ["patm_dra"] * 4


def test_repeated_command_resumes(tickets: Path, scripted: Any, capsys: Any) -> None:
    away = scripted(lambda q: Answer(failure="unavailable") if q.affinity == "t1-3" else plan_for(q))
    assert patm(tickets) == 0
    assert len(away) == 5, "the one in passing twice"
    assert len(read_items(tickets.with_name("plans.jsonl"))) == 3
    assert "temporary failure, to be retried" in capsys.readouterr().out
    asked = scripted(plan_for)
    assert patm(tickets) == 2
    assert "overwrite=true" in capsys.readouterr().err
    assert patm(tickets, "overwrite=true") == 0
    assert [q.affinity for q in asked] == ["t1-3"]
    assert len(read_items(tickets.with_name("plans.jsonl"))) == 4
    nobody = scripted(plan_for)
    assert patm(tickets, "overwrite=true") == 0
    assert nobody == []
    assert patm(tickets, "overwrite=true", "language=zh") == 0
    assert nobody, "another language is another recipe"


def test_no_output_is_written_if_no_pool_answers(tickets: Path, scripted: Any, capsys: Any) -> None:
    scripted(lambda question: Answer(failure="unavailable"))
    assert patm(tickets) == 1
    assert "no item got an answer" in capsys.readouterr().err
    assert not tickets.with_name("plans.jsonl").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["patm"], "give input="),
        (["patm", "input={t}"], "give output="),
        (["patm", "input={t}", "output=o.jsonl"], "give teacher=<pool> or teachers=<pool>,<pool>, of: judge, reranker"),
        (["patm", "input={t}", "output=o.jsonl", "teachers=judge,no"], "no such pool"),
        (["patm", "input={t}", "output=o.jsonl", "teachr=judge"], "unknown option; did you mean teacher=...?"),
        (["patm", "input={t}", "output=o.jsonl", "teacher=judge", "model=tny"], "model"),
        (["patm", "input={t}", "output=o.jsonl", "teacher=reranker"], "cannot write"),
        (["patm", "input={t}", "output=o.jsonl", "teacher=judge", "judge=no"], "no such pool"),
        (["patm", "input={t}", "output=o.jsonl", "split=dev"], "must be train, validation, test or all"),
        (["patm", "input={t}", "output=o.jsonl", "split=validation"], "no complete window"),
        (["patm", "input={t}", "output=o.jsonl", "language=fr"], "en or zh"),
        (["patm", "input={t}", "output=o.jsonl", "teacher=judge", "at_once=0"], "1 or more"),
        (["patm", "input={t}", "output=o.jsonl", "max_new_tokens=0"], "1 or more"),
        (["patm", "input={t}", "output=o.jsonl", "max_new_tokens=x"], "must be a whole number"),
        (["dra", "input={t}", "output=o.jsonl", "teacher=judge"], "history"),
        (["dra", "input=/none.jsonl", "output=o.jsonl", "teacher=judge"], "no such file"),
    ],
)
def test_bad_input_is_reported_in_one_line(
    tickets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, args: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert hamr(["data", *(arg.format(t=tickets) for arg in args), SMOKE]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "o.jsonl").exists()
