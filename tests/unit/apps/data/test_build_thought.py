"""`hamr data thought` with scripted pools: both steps, renderings, resumption, bad input."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hamr.cli import main as hamr
from hamr.data.samples import read_rows, write_rows, write_samples
from hamr.data.sft_items import read_items
from hamr.types import Answer, Question
from tests.unit.apps.data.recipes.thoughts import (
    CALL,
    PROCESS,
    SAID,
    ScriptedModels,
    chain,
    cot,
    learnt,
    quality,
    sample,
)

SMOKE = "experiment=smoke"


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[ScriptedModels], list[list[str]]]:
    """Scripted pools. Gives the list of started pools."""

    def use(crew: ScriptedModels) -> list[list[str]]:
        started: list[list[str]] = []

        def pools(config: Any, names: Any, work: Any, **_: Any) -> Any:
            started.append(list(names))
            return asyncio.run(work(dict.fromkeys(names, crew)))

        monkeypatch.setattr("hamr.apps.data.recipe_job.with_pools", pools)
        return started

    return use


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    path = tmp_path / "samples.jsonl"
    write_samples(path, [sample("a"), sample("b", CALL), sample("c")])
    return path


def thought(samples: Path, step: str, *more: str) -> int:
    files = [f"input={samples}", f"output={samples.with_name(step)}.jsonl"]
    return hamr(["data", "thought", f"step={step}", *files, "teacher=judge", SMOKE, *more])


def kinds(samples: Path, step: str) -> list[tuple[str, str]]:
    return [(item.sample.id, item.kind) for item in read_items(samples.with_name(f"{step}.jsonl"))]


def test_expert_thoughts_become_the_zero_think_set(samples: Path, scripted: Any, capsys: Any) -> None:
    scripted(ScriptedModels(thought_extract=lambda q: "no tags" if q.affinity == "c" else chain()))
    assert thought(samples, "extract") == 0
    shown = capsys.readouterr().out
    for words in ("thoughts: extract: 3 items", "dropped: tags", "to be repaired: tags", "chain's quality, mean"):
        assert words in shown
    assert "dialogue quality" not in shown
    assert kinds(samples, "extract") == [("a", "decision_dra"), ("b", "decision_dra")], "pre-CoT, as in Table 7"
    first, _ = read_items(samples.with_name("extract.jsonl"))
    assert first.text == f"<think>{learnt()}</think><answer>{SAID['en']}</answer>"
    records = [json.loads(line) for line in samples.with_name("extract.jsonl.records.jsonl").read_text().splitlines()]
    assert [(r["id"], r["reason"]) for r in records] == [("a", ""), ("b", ""), ("c", "tags")]
    assert [text["step"] for text in records[2]["texts"]] == ["extract", "repair"]


def test_migrated_thoughts_are_rendered_again_without_new_questions(samples: Path, scripted: Any, capsys: Any) -> None:
    crew = ScriptedModels(dialogue=lambda q: quality(2 if q.affinity == "b" else 4), thought_refine="")
    scripted(crew)
    assert thought(samples, "migrate", "candidates=2") == 0
    shown = capsys.readouterr().out
    for words in ("dropped: judge: dialogue_quality", "refined: teacher: nothing", "4.00", "SFT items, hybrid-CoT"):
        assert words in shown
    both = [("a", "decision_dra"), ("a", "decision_post"), ("c", "decision_dra"), ("c", "decision_post")]
    assert kinds(samples, "migrate") == both
    assert len(crew.questions("thought_chain")) == 2 * 3
    nobody = scripted(ScriptedModels())
    assert thought(samples, "migrate", "candidates=2", "render=post") == 2
    assert "overwrite=true" in capsys.readouterr().err
    assert thought(samples, "migrate", "candidates=2", "render=post", "overwrite=true") == 0
    assert nobody == [], "another rendering of what is there already"
    assert kinds(samples, "migrate") == [("a", "decision_post"), ("c", "decision_post")]
    again = scripted(ScriptedModels())
    assert thought(samples, "migrate", "candidates=2", "min_quality=2", "overwrite=true") == 0
    assert again, "another threshold is another recipe"


def test_expanded_items_are_written_too(samples: Path, scripted: Any) -> None:
    again = f"{chain()}<response>It has left our house; may I send you its number?</response>"
    scripted(ScriptedModels(dialogue=quality(4), thought_refine=again))
    assert thought(samples, "migrate", "candidates=1", "render=pre") == 0
    assert [name for name, _ in kinds(samples, "migrate")] == ["a", "a", "b", "b", "c", "c"]


def test_people_rate_chains_and_the_judge_is_compared_with_them(samples: Path, scripted: Any, capsys: Any) -> None:
    """Second paper, section 4.1: human ratings from 1 to 5 of the chains, means and Spearman's rho."""
    grades = {"a": 5, "b": 2, "c": 4}
    scripted(ScriptedModels(thought_extract=chain(), cot_quality=lambda q: cot(grades[q.affinity])))
    assert thought(samples, "extract", "to_rate=9") == 0
    assert [name for name, _ in kinds(samples, "extract")] == ["a", "c"], "b is dropped, and can be rated"
    rows = [json.loads(line) for line in samples.with_name("extract.jsonl.to_rate.jsonl").read_text().splitlines()]
    assert [(row["id"], row["rating"]) for row in rows] == [("a", None), ("b", None), ("c", None)]
    assert PROCESS["en"] in rows[0]["chain"] and "Where is my parcel?" in rows[0]["history"]
    assert "cot_quality" not in str(rows), "raters do not see the judge's grade"
    rated = samples.with_name("rated.jsonl")
    again = (f"ratings={rated}", "overwrite=true")

    def rate(*ratings: Any, **other: Any) -> int:
        write_rows(rated, [{**row, "rating": rating, **other} for row, rating in zip(rows, ratings, strict=True)])
        return thought(samples, "extract", *again)

    assert rate(5, 1, 4) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "3.33, 3.67" in shown and "Spearman's rho of both 1.000" in shown
    [figures] = read_rows(samples.with_name("extract.jsonl.ratings.jsonl"))
    assert (figures[1]["rated"], figures[1]["spearman"]) == (3, pytest.approx(1.0))
    for ratings, other, message in (
        ((6, 1, 4), {}, "rated.jsonl:1: rating: 6: must be an integer from 1 to 5, or null"),
        ((None, None, None), {}, "has no rating; fill in some"),
        ((5, 1, 4), {"chain": "else"}, "has been written again since"),
        ((5, 1, 4), {"id": "z"}, "no such graded chain"),
        ((5, 1, 4), {"id": ["a"]}, "no such graded chain"),
    ):
        assert rate(*ratings, **other) == 2
        assert message in capsys.readouterr().err
    filled = samples.with_name("extract.jsonl.to_rate.jsonl")
    filled.write_text(rated.read_text())
    assert thought(samples, "extract", "to_rate=9", f"ratings={filled}", "overwrite=true") == 2
    assert "its ratings lost" in capsys.readouterr().err and filled.read_text() == rated.read_text()


def test_chains_are_rated_although_an_item_has_failed_for_now(samples: Path, scripted: Any) -> None:
    def away(question: Question) -> Any:
        return Answer(failure="timeout") if question.affinity == "c" else chain()

    scripted(ScriptedModels(thought_extract=away))
    assert thought(samples, "extract", "to_rate=9") == 0
    rows = [row for _, row in read_rows(samples.with_name("extract.jsonl.to_rate.jsonl"))]
    assert [row["id"] for row in rows] == ["a", "b"]


def test_repeated_command_resumes(samples: Path, scripted: Any, capsys: Any) -> None:
    def away(question: Question) -> Any:
        return Answer(failure="unavailable") if question.affinity == "c" else chain()

    scripted(ScriptedModels(thought_chain=away))
    assert thought(samples, "migrate") == 0
    assert "temporary failure, to be retried" in capsys.readouterr().out
    crew = ScriptedModels()
    scripted(crew)
    assert thought(samples, "migrate", "overwrite=true") == 0
    assert {q.affinity for _, q in crew.asked} == {"c"}
    assert len(kinds(samples, "migrate")) == 6


def test_zero_think_uses_its_own_pool(samples: Path, scripted: Any) -> None:
    crew = ScriptedModels(zero_think=f"<think>{learnt()}</think><answer>x</answer>")
    started = scripted(crew)
    pool = "+pools.zt={role: grader, prompt: '', model: tiny}"
    assert thought(samples, "migrate", "zero_think=zt", pool) == 0
    assert started == [["judge", "zt"]]
    assert crew.questions("zero_think") and not crew.questions("thought_chain")


def test_no_output_is_written_if_no_pool_answers(samples: Path, scripted: Any, capsys: Any) -> None:
    scripted(ScriptedModels(thought_extract=[Answer(failure="unavailable")]))
    assert thought(samples, "extract") == 1
    assert "no item got an answer" in capsys.readouterr().err
    assert not samples.with_name("extract.jsonl").exists()


def test_table_gives_the_reason_if_no_item_is_kept(samples: Path, scripted: Any, capsys: Any) -> None:
    scripted(ScriptedModels(thought_extract="no tags"))
    assert thought(samples, "extract") == 0
    shown = capsys.readouterr().out
    assert "dropped: tags" in shown and "mean" not in shown
    assert samples.with_name("extract.jsonl").read_text() == ""


IO = ["input={s}", "output=o.jsonl"]
BOTH = ["step=migrate", *IO, "teacher=judge"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "give step=<name>, one of: extract, migrate"),
        (["step=extract"], "give input="),
        (["step=extract", "input={s}"], "give output="),
        (["step=distil", *IO], "no such step; there are: extract, migrate"),
        (["step=extract", *IO], "give teacher=<pool>"),
        (["step=extract", *IO, "teacher=reranker"], "cannot write"),
        (["step=extract", *IO, "teacher=judge", "candidates=3"], "is an option of `hamr data thought step=migrate`"),
        (
            ["step=extract", *IO, "teacher=judge", "zero_think=judge"],
            "is an option of `hamr data thought step=migrate`",
        ),
        (["step=extract", "input=/none.jsonl", "output=o.jsonl", "teacher=judge"], "no such file"),
        ([*BOTH, "zero_think=no"], "zero_think: 'no': no such pool"),
        ([*BOTH, "judge=no"], "no such pool"),
        ([*BOTH, "render=both"], "must be pre, post or hybrid"),
        ([*BOTH, "language=fr"], "en or zh"),
        ([*BOTH, "min_cot=6"], "must be between 1 and 5"),
        ([*BOTH, "min_quality=0"], "must be between 1 and 5"),
        ([*BOTH, "min_quality=x"], "must be a whole number"),
        ([*BOTH, "candidates=0"], "1 or more"),
        ([*BOTH, "refine=-1"], "0 or more"),
        ([*BOTH, "temperature=3"], "between 0 and 2"),
        ([*BOTH, "temperature=nan"], "must be a number"),
        ([*BOTH, "temperature=0"], "makes all candidates equal"),
        ([*BOTH, "max_new_tokens=0"], "1 or more"),
        ([*BOTH, "at_once=0"], "1 or more"),
        ([*BOTH, "candidats=2"], "candidats"),
    ],
)
def test_bad_input_is_reported_in_one_line(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, args: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert hamr(["data", "thought", *(arg.format(s=samples) for arg in args), SMOKE]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "o.jsonl").exists()
