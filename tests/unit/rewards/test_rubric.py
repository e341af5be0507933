"""Algorithm 1 of the second paper: valid rubric items."""

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.rewards.rubric import RubricItem, keeps_weight, parse_rubric

ITEMS = [
    {"title": "Names the fee", "description": "States the fee of 12 euros.", "weight": 5},
    {"title": "Stays polite", "description": "Greets the customer.", "weight": 1},
    {"title": "Invents terms", "description": "Promises what the policy has not.", "weight": -2},
]


@pytest.mark.parametrize(
    ("weight", "kept", "kept_strictly"),
    [
        (1, True, True), (5, True, True), (-1, True, True), (-2, True, True),
        (2.5, True, False), (1.0, True, True), (4.999, True, False),
        (0, False, False), (0.999, False, False), (5.001, False, False), (6, False, False),
        (-3, False, False), (-1.5, False, False), (math.nan, False, False), (math.inf, False, False),
    ],
)  # fmt: skip
def test_algorithm_1_keeps_only_valid_weights(weight, kept, kept_strictly):
    assert keeps_weight(weight) is kept
    assert keeps_weight(weight, strict_integers=True) is kept_strictly


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(ITEMS),
        "Analysis first.\n```json\n" + json.dumps({"rubrics": ITEMS}, indent=1) + "\n```\nDone.",
        "\n".join(json.dumps(item) for item in ITEMS),
        json.dumps(ITEMS[:1]) + " was a draft, now for good: " + json.dumps(ITEMS),
        "\n".join(f"- {i['title']} (w = {i['weight']}): {i['description']}" for i in ITEMS),
        "\n".join(f"{n}. **{i['title']}** ($w = {i['weight']}$): {i['description']}" for n, i in enumerate(ITEMS)),
    ],
)
def test_all_notations_give_the_same_items_in_order(text):
    assert parse_rubric(text) == tuple(RubricItem(**item) for item in ITEMS)


def test_invalid_items_are_dropped_and_valid_ones_kept():
    bad = [
        {"title": "Zero", "description": "x", "weight": 0},
        {"title": "", "description": "x", "weight": 3},
        {"title": "Worded", "description": "x", "weight": "high"},
        {"title": "True is not 1", "description": "x", "weight": True},
        {"title": "None at all", "description": "x"},
    ]
    assert parse_rubric(json.dumps(bad + ITEMS[:1])) == (RubricItem(**ITEMS[0]),)


def test_a_weight_written_as_text_is_read():
    assert parse_rubric('[{"title": "T", "description": "D", "weight": "3"}]')[0].weight == 3.0


def test_strict_integers_can_be_configured():
    text = '[{"title": "Half", "description": "D", "weight": 2.5}]'
    assert len(parse_rubric(text)) == 1
    assert parse_rubric(text, strict_integers=True) == ()


@given(st.one_of(st.text(), st.text(alphabet='[]{}":,- (w=15)\n')))
def test_parsing_never_raises_and_keeps_only_valid_weights(text):
    assert all(keeps_weight(item.weight) for item in parse_rubric(text))


def test_deep_nesting_is_parsed_quickly():
    assert parse_rubric("[" * 5000) == ()


def test_the_published_rubrics_are_all_valid():
    public = os.environ.get("HAMR_PUBLIC_DATA")
    if public is None:
        pytest.skip("HAMR_PUBLIC_DATA is not set")
    found = [folder / "paper001_rubrics.jsonl" for folder in (Path(public), Path(public).parent)]
    file = next((path for path in found if path.is_file()), None)
    if file is None:
        pytest.skip(f"no paper001_rubrics.jsonl in or beside {public}")
    sizes = [len(parse_rubric(json.dumps(json.loads(line)["rubric"]))) for line in file.read_text().splitlines()]
    assert sizes == [10, 12, 12]
