"""Data for a hallucination judge: automatic decisions, rows for human review, and imported labels."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from hamr.apps.data.build_hallucination import read_earlier
from hamr.apps.data.recipes.hallucination_loop import hallucination_items, read_labels, sets_of
from hamr.apps.scorer.grader import FLAWS
from hamr.apps.scorer.judged import read_judged
from hamr.apps.shared.pools_up import judging_pool
from hamr.cli import main as hamr
from hamr.config.load import load_config
from hamr.data.progress import ItemResult
from hamr.data.responses import ResponseGroup
from hamr.data.samples import from_json, to_json, write_rows
from hamr.errors import BadInput, DataError
from hamr.types import Answer, Question, Reference, Reply, ServiceSample

POOLS = ["+pools.other={role: grader}", "experiment=smoke"]


def row(*responses: str) -> dict[str, Any]:
    sample = ServiceSample(
        id="s", ticket={}, policy="", tools=(), history=(), references=(Reference(action=Reply(content="Yes.")),)
    )
    return {**to_json(sample), "responses": list(responses)}


def verdict(label: str) -> str:
    return json.dumps({"reason": f"it is {label}", "judgment": label})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The judge flags what says "invented"; the second model what says "doubtful"."""

    def asking(name: str) -> Any:
        async def ask(question: Question) -> Answer:
            if question.prompt.startswith("hallucination_reason"):
                assert name == "other", "the second model refines"
                said = "" if "unclear" in question.variables["note"] else f"refined: {question.variables['note']}"
                return Answer(text=json.dumps({"reason": said}))
            flagged = {"judge": "invented", "other": "doubtful"}[name] in question.variables["response"]
            return Answer(text=verdict("factual" if flagged else "none"))

        return ask

    def pools(config: Any, names: Any, work: Any, **_: Any) -> Any:
        return asyncio.run(work({name: asking(name) for name in names}))

    monkeypatch.setattr("hamr.apps.data.recipe_job.with_pools", pools)
    write_rows(tmp_path / "r.jsonl", [row("fine", "doubtful", "invented"), row("invented too")])
    return tmp_path


def build(folder: Path, *more: str) -> int:
    given = [f"input={folder / 'r.jsonl'}", f"output={folder / 'out'}", "judge=judge", "second=other", "refine=false"]
    given += more
    return hamr(["data", "hallucination", *given, *POOLS])


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_second_model_confirms_and_disputed_rows_go_to_review(folder: Path, capsys: Any) -> None:
    assert build(folder) == 0
    out = folder / "out"
    assert "dropped: the second model does not confirm" in " ".join(capsys.readouterr().out.split())
    assert [(r["response"], r["label"]) for r in rows_of(out / "simple.jsonl")] == [("fine", "none")]
    review = rows_of(out / "review.jsonl")
    assert [(r["id"], r["response"], r["label"]) for r in review] == [
        ("1/s/2", "invented", None), ("2/s/0", "invented too", None),
    ]  # fmt: skip
    assert review[0]["predicted"] == {"label": "factual", "reason": "it is factual"}
    assert not (out / "hard.jsonl").exists()

    review[0].update(label="misuse", reason="The policy says otherwise.")
    write_rows(folder / "labels.jsonl", review)
    again = (f"labels={folder / 'labels.jsonl'}", "overwrite=true")
    assert build(folder, *again) == 0
    assert [(r["response"], r["label"], r["reason"]) for r in rows_of(out / "confirmed.jsonl")] == [
        ("invented", "misuse", "The policy says otherwise.")
    ]
    assert [r["id"] for r in rows_of(out / "review.jsonl")] == ["2/s/0"]

    review[1].update(label="none")
    write_rows(folder / "labels.jsonl", review)
    assert build(folder, *again) == 0
    assert [(r["response"], r["label"]) for r in rows_of(out / "hard.jsonl")] == [("invented too", "none")]
    assert not (out / "review.jsonl").exists()


def test_later_label_file_needs_only_new_labels(folder: Path) -> None:
    out, labels = folder / "out", folder / "labels.jsonl"
    again = (f"labels={labels}", "overwrite=true")
    assert build(folder) == 0
    for _ in range(2):  # what is still open, one more of them labelled
        first, *rest = rows_of(out / "review.jsonl")
        write_rows(labels, [{**first, "label": "misuse", "reason": "as read"}, *rest])
        assert build(folder, *again) == 0
    assert [r["response"] for r in rows_of(out / "confirmed.jsonl")] == ["invented", "invented too"]
    # Of another response under the same name nothing is known.
    write_rows(folder / "r.jsonl", [row("fine", "doubtful", "invented anew"), row("invented too")])
    assert build(folder, "overwrite=true") == 0
    assert [r["response"] for r in rows_of(out / "review.jsonl")] == ["invented anew"]
    assert [r["response"] for r in rows_of(out / "confirmed.jsonl")] == ["invented too"]


def test_label_of_a_person_decides_against_two_models(folder: Path) -> None:
    sample = {key: value for key, value in row().items() if key != "responses"}

    def sets(kept: Any) -> dict[str, list[Any]]:
        items = hallucination_items([ResponseGroup(sample=from_json(sample), responses=("x",), number=1)], "en", "m")
        labels = {items[0].id: ("misuse", "as read")}
        return sets_of(items, {items[0].id: ItemResult(kept=kept)}, labels)

    for kept in ({"set": "simple", "label": "none", "reason": "fine"}, None):
        found = sets(kept)
        assert [r["label"] for r in found["confirmed"]] == ["misuse"] and not found["simple"]
    assert build(folder) == 0
    write_rows(folder / "out" / "judge.jsonl", [{**sample, "response": "fine", "label": "misuse", "reason": "as read"}])
    given = [f"input={folder / 'r.jsonl'}", f"output={folder / 'two'}", "judge=judge", "second=other", "refine=false"]
    assert hamr(["data", "hallucination", *given, f"earlier={folder / 'out'}", *POOLS]) == 0
    assert {r["response"]: r["label"] for r in rows_of(folder / "two" / "judge.jsonl")}["fine"] == "misuse"


def test_labels_stay_with_their_responses_when_the_input_changes(folder: Path, capsys: Any) -> None:
    out, labels = folder / "out", folder / "labels.jsonl"
    assert build(folder) == 0
    done = [{**row, "label": "misuse", "reason": f"of {row['response']}"} for row in rows_of(out / "review.jsonl")]
    write_rows(labels, done)
    assert build(folder, f"labels={labels}", "overwrite=true") == 0
    # A line before them moves all; one of the responses is gone for now.
    write_rows(folder / "r.jsonl", [row("invented now"), row("fine", "invented")])
    capsys.readouterr()
    assert build(folder, "overwrite=true") == 0
    assert [(r["response"], r["reason"]) for r in rows_of(out / "confirmed.jsonl")] == [("invented", "of invented")]
    assert [r["response"] for r in rows_of(out / "review.jsonl")] == ["invented now"]
    assert "1 labels are of responses that the input does not have" in capsys.readouterr().out
    write_rows(folder / "new.jsonl", [{"id": "1/s/0", "response": "invented now", "label": "none"}])
    assert build(folder, f"labels={folder / 'new.jsonl'}", "overwrite=true") == 0
    write_rows(folder / "r.jsonl", [row("fine", "doubtful", "invented"), row("invented too")])
    assert build(folder, "overwrite=true") == 0
    assert [r["response"] for r in rows_of(out / "confirmed.jsonl")] == ["invented", "invented too"]


def test_reasons_are_refined_and_all_sets_are_one_training_file(folder: Path, capsys: Any) -> None:
    """Second paper, section 3.2, Figure 2: three sets, reasons refined by a model, and further rounds."""
    assert build(folder) == 0
    review = rows_of(folder / "out" / "review.jsonl")
    review[0].update(label="factual", reason="not in the policy")
    review[1].update(label="none")
    write_rows(folder / "labels.jsonl", review)
    assert build(folder, f"labels={folder / 'labels.jsonl'}", "overwrite=true", "refine=true") == 0
    expected = [
        ("fine", "none", "it is none"), ("invented too", "none", ""),
        ("invented", "factual", "refined: not in the policy"),
    ]  # fmt: skip
    learnt = rows_of(folder / "out" / "judge.jsonl")
    assert [(r["response"], r["label"], r["reason"]) for r in learnt] == expected
    train = read_judged(folder / "out" / "judge.jsonl", FLAWS["hallucination"])
    assert [row.labels for row in train] == [(), (), ("factual",)]
    (kept,) = [row for row in rows_of(folder / "out" / "labelled.jsonl") if row["label"] == "factual"]
    assert kept["reason"] == "not in the policy", "people's words are not lost"

    write_rows(folder / "r.jsonl", [row("fine again")])
    grader = f"{{role: grader, finetune: {{labelled: {folder}/out/judge.jsonl, reward: hallucination}}}}"
    given = [f"input={folder / 'r.jsonl'}", f"output={folder / 'two'}", "judge=judge", "second=other"]
    assert hamr(["data", "hallucination", *given, f"earlier={folder / 'out'}", *POOLS]) == 0
    both = rows_of(folder / "two" / "judge.jsonl")
    assert [r["response"] for r in both] == [*(said for said, _, _ in expected), "fine again"]
    config = load_config([*POOLS, f"+pools.judge_2={grader}"])
    assert judging_pool(config, "judge", "judge_2", "hallucination") == "judge_2"
    with pytest.raises(BadInput, match="is fine-tuned to give verdicts"):
        judging_pool(config, "rewards.risk.pool", "judge_2", "risk")
    with pytest.raises(BadInput, match=r"has no judge\.jsonl"):
        read_earlier(folder)


def test_unusable_refinement_keeps_the_reason_of_the_person(folder: Path) -> None:
    assert build(folder) == 0
    review = [{**r, "label": "misuse", "reason": "unclear"} for r in rows_of(folder / "out" / "review.jsonl")]
    write_rows(folder / "labels.jsonl", review)
    assert build(folder, f"labels={folder / 'labels.jsonl'}", "overwrite=true", "refine=true") == 0
    assert {r["reason"] for r in rows_of(folder / "out" / "confirmed.jsonl")} == {"unclear"}


def test_labels_of_another_input_are_rejected(folder: Path, capsys: Any) -> None:
    assert build(folder) == 0
    review = rows_of(folder / "out" / "review.jsonl")
    write_rows(folder / "labels.jsonl", [{**row, "label": "none"} for row in review])
    write_rows(folder / "r.jsonl", [row("fine", "doubtful", "invented anew"), row("invented too")])
    assert build(folder, f"labels={folder / 'labels.jsonl'}", "overwrite=true") == 2
    error = capsys.readouterr().err
    assert "labels.jsonl:1: id: '1/s/2': is another response in the input" in error
    assert error.count("\n") == 1
    assert not (folder / "out" / "labelled.jsonl").exists()


@pytest.mark.parametrize(
    ("labelled", "said"),
    [
        ({"id": "x", "label": "bad"}, "must be one of none, misuse, factual, relevance, logical, or null"),
        ({"id": "x", "label": "factual"}, "needs a reason"),
        ({"id": "x"}, "with id and label"),
        ("x", "with id and label"),
    ],
)
def test_invalid_label_is_named(labelled: Any, said: str) -> None:
    with pytest.raises(DataError) as refused:
        read_labels([("f:1", labelled)])
    assert said in str(refused.value)
    assert read_labels([("f:1", {"id": "x", "label": None})]) == {}


def test_bad_input_is_reported_in_one_line(folder: Path, capsys: Any) -> None:
    write_rows(folder / "labels.jsonl", [{"id": "9/s/0", "label": "none"}])
    for more, said in (
        (["second=judge"], "is the judge itself"),
        (["second=no"], "no such pool"),
        (["judge="], "give judge="),
        ([f"labels={folder / 'out' / 'review.jsonl'}"], "its labels lost; give a copy"),
        ([f"labels={folder / 'labels.jsonl'}"], "is the id of no response"),
    ):
        assert build(folder, *more) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
