"""Labelled responses: parsing, rejected rows, and the overlap baseline without a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hamr.apps.scorer.judged import JudgedResponse, borne_out, read_judged, split_off
from hamr.errors import DataError

SAMPLE = {
    "id": "a",
    "ticket": {"Penalty": "$40"},
    "policy": "Name the fee.",
    "tools": [],
    "history": [{"role": "customer", "content": "What does it cost?"}],
    "references": [{"action": "reply", "content": "It costs $40."}],
}
LABELS = ("misuse", "factual")


def rows(tmp_path: Path, *lines: dict[str, Any]) -> list[JudgedResponse]:
    path = tmp_path / "judged.jsonl"
    path.write_text("".join(json.dumps(SAMPLE | line) + "\n" for line in lines))
    return read_judged(path, LABELS)


def test_line_has_sample_response_label_and_reason(tmp_path: Path) -> None:
    clean, one, two = rows(
        tmp_path,
        {"response": "It costs $40.", "label": "none", "reason": None},
        {"response": "It costs $50.", "label": "factual", "reason": "$50"},
        {"response": "x", "label": ["factual", "misuse"], "reason": "both", "privileged": {}},
    )
    assert (clean.labels, clean.reason, clean.response) == ((), "", "It costs $40.")
    assert (one.labels, one.reason) == (("factual",), "$50")
    assert two.labels == ("misuse", "factual"), "in the order of the known ones"
    assert clean.sample.ticket == {"Penalty": "$40"}


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ({"response": 3, "label": "none"}, "response"),
        ({"response": "x"}, "label"),
        ({"response": "x", "label": "fact"}, "label"),
        ({"response": "x", "label": []}, "label"),
        ({"response": "x", "label": [["factual"]]}, "label"),
        ({"response": "x", "label": ["none", "factual"]}, "label"),
        ({"response": "x", "label": "none", "reason": 1}, "reason"),
        ({"response": "x", "label": "none", "references": []}, "references"),
    ],
)
def test_invalid_row_names_line_and_field(tmp_path: Path, line: dict[str, Any], field: str) -> None:
    with pytest.raises(DataError, match=rf"judged\.jsonl:2: {field}"):
        rows(tmp_path, {"response": "x", "label": "none"}, line)


def test_responses_to_one_sample_stay_in_one_split(tmp_path: Path) -> None:
    found = rows(tmp_path, *({"id": str(i // 2), "response": "x", "label": "none"} for i in range(40)))
    train, held_out = split_off(found, 17)
    assert (len(train), len(held_out)) == (32, 8), "a fifth of twenty samples"
    assert {row.sample.id for row in train}.isdisjoint(row.sample.id for row in held_out)
    assert split_off(found, 17) == (train, held_out)


def test_samples_of_one_dialogue_stay_in_one_split(tmp_path: Path) -> None:
    """Such samples share most of the judge's input."""
    lines = [
        {"id": f"d{i // 3}-{i % 3}", "meta": {"dialogue": f"d{i // 3}"}, "response": "x", "label": "none"}
        for i in range(60)
    ]
    train, held_out = split_off(rows(tmp_path, *lines), 17)
    assert (len(train), len(held_out)) == (48, 12)
    assert {row.sample.meta["dialogue"] for row in train}.isdisjoint(row.sample.meta["dialogue"] for row in held_out)


def test_overlap_is_the_fraction_of_words_found_in_the_material(tmp_path: Path) -> None:
    """ "cost", "fee" and "40" occur in the material, "dear" does not."""
    (row,) = rows(tmp_path, {"response": "Cost: $40. Fee dear!", "label": "none"})
    assert borne_out(row) == 0.75
    (empty,) = rows(tmp_path, {"response": "...", "label": "none"})
    assert borne_out(empty) == 1.0


def test_planted_response_has_the_label_of_the_reward(tmp_path: Path) -> None:
    """As `hamr data olabench` plants them: judged with the evidence that was shown, and held out with their item."""
    shown = {"kind": "rag", "evidence": [{"answer": "The fee is $40."}]}
    lines = [
        {"id": "a/none", "labels": {"hallucination": "none"}},
        {"id": "a/factual", "labels": {"hallucination": "factual"}},
        {"id": "b/risk", "labels": {"risk": ["role"]}},
        {"id": "b/untyped", "labels": {"hallucination": "yes"}},
    ]
    planted = [SAMPLE | shown | {"response": "It costs $40."} | line for line in lines]
    path = tmp_path / "planted.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in planted))
    clean, flawed = read_judged(path, LABELS)
    assert (clean.labels, flawed.labels) == ((), ("factual",)) and clean.sample == flawed.sample
    assert clean.sample.id == "a" and "The fee is $40." in clean.sample.history[0].content
    (risky,) = read_judged(path, ("role",), "risk")
    assert (risky.labels, risky.sample.id) == (("role",), "b")
