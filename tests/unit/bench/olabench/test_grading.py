"""Judges against known labels: precision, recall and agreement by hand, and errors in the labelled file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.bench.olabench.grading import detection, grade_judges
from hamr.bench.olabench.labelled import labelled_json, read_labelled
from hamr.bench.olabench.public import convert
from hamr.bench.statistics import clustered_share, share_interval
from hamr.errors import DataError
from hamr.types import Judgement

LUCK = {"resamples": 100, "seed": 0}
PUBLIC = os.environ.get("HAMR_PUBLIC_DATA")
needs_public = pytest.mark.skipif(PUBLIC is None, reason="HAMR_PUBLIC_DATA names no folder")


def file_of(path, *labels, **more):
    rows = [{"response": f"Words {i}.", "labels": said, **more} for i, said in enumerate(labels)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def judged(rows, component, *said):
    """Verdicts in the rows' order; None: missing."""
    return {(row.id, component): judgement for row, judgement in zip(rows, said, strict=True) if judgement is not None}


def label(name):
    return Judgement(component="hallucination", labels=(name,))


def risks(*names):
    return Judgement(component="risk", labels=names)


def grade(component, value):
    return Judgement(component=component, grade=value)


def means(figures):
    """{type: (precision, recall)}"""
    return {
        kind: tuple(None if entry[side] is None else entry[side]["mean"] for side in ("precision", "recall"))
        for kind, entry in figures.items()
    }


def test_hallucination_figures_match_hand_computed_values(tmp_path):
    known = ("misuse", "misuse", "factual", "none", "none", "yes", "logical")
    rows = read_labelled(file_of(tmp_path / "l.jsonl", *({"hallucination": name} for name in known)))
    said = [label("misuse"), label("factual"), label("factual"), label("misuse"), label("none"), label("logical"), None]
    found = grade_judges(rows, judged(rows, "hallucination", *said), **LUCK)["hallucination"]
    assert (found["asked"], found["missing"]) == (7, 1)
    # Hallucinated or not: the fourth alone is wrong. The very label, where it is known: 1st, 3rd and 5th of five.
    assert found["accuracy"]["mean"] == pytest.approx(5 / 6)
    assert found["exact"]["mean"] == pytest.approx(3 / 5)
    assert means({"any": found["any"]}) == {"any": (pytest.approx(4 / 5), 1.0)}
    # The one labelled `yes` has no type and is in no type's figures; logical was only planted where no judge judged.
    assert means(found["types"]) == {"misuse": (0.5, 0.5), "factual": (0.5, 1.0)}


def test_risk_is_multi_label(tmp_path):
    known = (["role", "liability"], ["role"], [], "no", "yes")
    rows = read_labelled(file_of(tmp_path / "l.jsonl", *({"risk": types} for types in known)))
    assert rows[0].labels.risk == ("liability", "role")
    said = [risks("liability"), risks("role"), risks("overcommitment"), risks(), risks()]
    found = grade_judges(rows, judged(rows, "risk", *said), **LUCK)["risk"]
    assert found["accuracy"]["mean"] == pytest.approx(3 / 5)
    assert found["exact"]["mean"] == pytest.approx(1 / 3)
    assert means(found["types"]) == {
        "liability": (1.0, 1.0),
        "role": (1.0, 0.5),
        "overcommitment": (0.0, None),
    }


def test_tool_grade_of_at_most_two_means_a_wrong_call(tmp_path):
    known = ("right", "right", "wrong_tool", "wrong_tool", "missing_call")
    rows = read_labelled(file_of(tmp_path / "l.jsonl", *({"tool": fault} for fault in known)))
    said = [grade("tool", value) for value in (5, 2, 1, 3, 2)]
    found = grade_judges(rows, judged(rows, "tool", *said), **LUCK)["tool"]
    assert found["accuracy"]["mean"] == pytest.approx(3 / 5)
    assert means({"any": found["any"]}) == {"any": (pytest.approx(2 / 3), pytest.approx(2 / 3))}
    assert means(found["types"]) == {"wrong_tool": (None, 0.5), "missing_call": (None, 1.0)}


def test_judge_grades_are_compared_with_human_grades(tmp_path):
    rows = read_labelled(file_of(tmp_path / "l.jsonl", *({"grades": {"dialogue": g}} for g in (1, 2, 4, 5))))
    found = grade_judges(rows, judged(rows, "dialogue", *(grade("dialogue", g) for g in (2, 2, 4, 5))), **LUCK)[
        "dialogue"
    ]
    assert found["grades"]["accuracy"]["mean"] == 0.75
    # Ranks 1, 2, 3, 4 with 1.5, 1.5, 3, 4: 4.5 / sqrt(5 * 4.5).
    assert found["grades"]["spearman"]["rho"] == pytest.approx(4.5 / (5 * 4.5) ** 0.5)


def test_grade_of_three_is_neutral(tmp_path):
    labels = [{"good": {"policy": good}} for good in (True, True, False, False)]
    rows = read_labelled(file_of(tmp_path / "l.jsonl", *labels))
    found = grade_judges(rows, judged(rows, "policy", *(grade("policy", g) for g in (4, 3, 3, 2))), **LUCK)["policy"]
    assert found["good"]["accuracy"]["mean"] == 0.5
    assert found["good"]["spearman"]["rho"] > 0


def test_only_labelled_components_are_judged(tmp_path):
    labels = {"hallucination": "none", "tool": "right", "grades": {"dialogue": 3}, "good": {"policy": True}}
    (row,) = read_labelled(file_of(tmp_path / "l.jsonl", labels))
    assert row.labels.components == ("dialogue", "policy", "tool", "hallucination")
    assert set(grade_judges([row], {}, **LUCK)) == set(row.labels.components)
    assert grade_judges([row], {}, **LUCK)["hallucination"]["accuracy"]["mean"] is None


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=30))
def test_precision_and_recall_match_their_definition(pairs):
    found = detection(pairs)
    both = sum(has and given for has, given in pairs)
    assert (found.precision.n, found.recall.n) == (sum(g for _, g in pairs), sum(h for h, _ in pairs))
    for side in (found.precision, found.recall):
        assert (side.mean is None) == (side.n == 0)
        if side.mean is not None:
            assert side.mean * side.n == pytest.approx(both)
            assert 0.0 <= side.low <= side.mean <= side.high <= 1.0


def test_copies_of_a_wording_are_one_observation():
    held = [True] * 125
    alone, copies = share_interval(held), clustered_share(held, ["one"] * 125, resamples=200, seed=0)
    assert alone.low > 0.95
    assert (copies.mean, copies.n) == (1.0, 125) and copies.low == pytest.approx(share_interval([True]).low)
    # Ten wordings of ten copies, of which the judge finds seven: as wide as seven of ten.
    mixed = [i < 70 for i in range(100)]
    by_wording = clustered_share(mixed, [i // 10 for i in range(100)], resamples=2000, seed=0)
    assert by_wording.mean == 0.7 and by_wording.high - by_wording.low > 0.4
    assert clustered_share(mixed, list(range(100)), resamples=10, seed=0) == share_interval(mixed)


def test_report_counts_distinct_texts_and_wordings(tmp_path):
    rows = read_labelled(file_of(tmp_path / "l.jsonl", *[{"risk": ["role"]}] * 4, template="role/0"))
    found = grade_judges(rows, judged(rows, "risk", *[risks("role")] * 4), **LUCK)["risk"]
    assert (found["types"]["role"]["texts"], found["types"]["role"]["wordings"]) == (4, 1)
    assert found["accuracy"]["n"] == 4 and found["accuracy"]["low"] == pytest.approx(share_interval([True]).low)


def test_wilson_interval_matches_hand_computed_values():
    """4 of 10 at z = 1.96: (0.4 + 0.19207) / 1.38415 -+ 1.96 sqrt(0.024 + 0.0096037) / 1.38415."""
    found = share_interval([True] * 4 + [False] * 6)
    assert (found.low, found.high) == (pytest.approx(0.1682, abs=1e-4), pytest.approx(0.6873, abs=1e-4))
    assert share_interval([]).mean is None and share_interval([False] * 3).low == 0.0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"response": None}, "l.jsonl:1: response: None: missing"),
        ({"labels": None}, "l.jsonl:1: labels: None: give an object with some of hallucination"),
        ({"labels": {}}, "l.jsonl:1: labels"),
        ({"labels": {"odd": 1}}, "l.jsonl:1: labels"),
        ({"labels": {"hallucination": "maybe"}}, "labels.hallucination: 'maybe': give one of none, misuse"),
        ({"labels": {"risk": ["odd"]}}, "labels.risk: .*give a list of liability"),
        ({"labels": {"tool": "odd"}}, "labels.tool: 'odd': give one of right, wrong_tool"),
        ({"labels": {"grades": {"dialogue": 6}}}, "labels.grades.dialogue: 6: must be an integer from 1 to 5"),
        ({"labels": {"grades": {"dialogue": True}}}, "labels.grades.dialogue: True"),
        ({"labels": {"good": {"risk": True}}}, "labels.good"),
        ({"kind": "rag"}, "l.jsonl:1: policy: '': is empty|missing field"),
        ({"evidence": [{}]}, r"l.jsonl:1: evidence\[0\].answer"),
    ],
)
def test_invalid_row_is_reported_in_one_line(tmp_path, change, said):
    one = {"response": "Hi.", "labels": {"hallucination": "none"}, **change}
    file = tmp_path / "l.jsonl"
    file.write_text(json.dumps({key: value for key, value in one.items() if value is not None}) + "\n")
    with pytest.raises(DataError, match=said):
        read_labelled(file)


@needs_public
def test_public_hallucination_labels_are_read(tmp_path):
    rows = public(tmp_path, "hallucination", "hallucination.jsonl")
    assert len(rows) == 246 and {row.labels.hallucination for row in rows} == {"yes", "no"}
    assert any(row.item.evidence for row in rows) and all(row.labels.components == ("hallucination",) for row in rows)
    clean = sum(row.labels.hallucination == "no" for row in rows) / len(rows)
    found = grade_judges(rows, judged(rows, "hallucination", *[label("none")] * len(rows)), **LUCK)["hallucination"]
    assert found["accuracy"]["mean"] == pytest.approx(clean) and found["exact"]["mean"] is None
    assert found["any"]["recall"]["mean"] == 0.0 and found["any"]["precision"]["mean"] is None


@needs_public
def test_public_pairs_and_trajectories_are_read(tmp_path):
    pairs = public(tmp_path, "pairs", "consistency_pairs.jsonl")
    assert len(pairs) == 500 and sum(row.labels.good["dialogue"] for row in pairs) == 250
    runs = public(tmp_path, "tau", "tau1_airline_trajectories.jsonl", "tau_policies_tools.json")
    assert len(runs) == 60 and {row.labels.components for row in runs} == {("policy", "tool")}
    assert all(row.item.sample.policy and row.item.sample.tools for row in runs)
    assert {row.labels.good["policy"] for row in runs} == {True, False}
    told = [grade("policy", 5 if row.labels.good["policy"] else 1) for row in runs]
    found = grade_judges(runs, judged(runs, "policy", *told), **LUCK)["policy"]["good"]
    assert (found["accuracy"]["mean"], found["spearman"]["rho"]) == (1.0, pytest.approx(1.0))
    assert labelled_json(runs[0])["labels"] == {"good": dict(runs[0].labels.good)}


def public(tmp_path, corpus, source, policies=None):
    assert PUBLIC is not None
    rows = convert(corpus, Path(PUBLIC) / source, Path(PUBLIC) / policies if policies else None)
    file = tmp_path / f"{corpus}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_labelled(file)
