from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.procedures import load_scenario
from hamr.procedures.contract import AgentOutput
from hamr.procedures.prompts import DIMENSIONS
from hamr.procedures.scores import (
    action_score,
    classification,
    combined_logic,
    logic_score,
    overall,
    path_score,
    quality,
    reference_of,
)

TELECOM = load_scenario("telecom_package")
BOUND = {"PackageStatus": "Contracted", "Penalty": 100}
FIELDS = {
    "ConsumptionType": "Change",
    "ApplicationTendency": "Agree",
    "ConsumptionProfile": "Data",
    "EmotionTag": "Discontent",
}


# Rows of the paper's Table 1: logic, chat, overall; then the six scenarios' overall scores, whose mean is the overall.
@pytest.mark.parametrize(
    ("logic", "chat", "expected", "scenarios"),
    [
        (70.10, 77.38, 71.56, (71.21, 75.03, 75.07, 67.30, 66.52, 74.24)),  # Claude-Sonnet-4.5
        (72.10, 74.68, 72.62, (72.73, 73.12, 73.25, 71.25, 70.12, 75.22)),  # Claude-Opus-4.5
        (72.08, 68.11, 71.29, (71.51, 70.61, 70.71, 70.87, 65.84, 78.17)),  # DeepSeek-V3.2
        (37.36, 38.64, 37.62, (49.58, 55.83, 37.58, 28.26, 38.14, 16.30)),  # Llama-3.1-8B-Instruct
        (58.56, 55.05, 57.86, (64.71, 62.72, 56.57, 44.36, 56.47, 62.31)),  # Qwen3-4B
    ],
)
def test_overall_score_matches_table_1(logic, chat, expected, scenarios):
    assert overall(logic, chat) == pytest.approx(expected, abs=0.008)
    assert sum(scenarios) / len(scenarios) == pytest.approx(expected, abs=0.006)


# Rows of Table 4 (path, action, classification) against Table 2's logic score at turn 1.
@pytest.mark.parametrize(
    ("path", "action", "labels", "expected"),
    [
        (64.4, 29.4, 72.5, 60.7),  # airline
        (66.0, 29.5, 88.0, 67.5),  # e-commerce
        (64.3, 32.3, 66.9, 58.9),  # logistics
        (67.0, 43.0, 80.2, 67.5),  # education
        (67.2, 57.1, 64.0, 63.9),  # property
        (74.6, 58.7, 65.9, 68.0),  # telecom
    ],
)
def test_logic_score_matches_tables_2_and_4(path, action, labels, expected):
    assert combined_logic(labels / 100, path / 100, action / 100) == pytest.approx(expected, abs=0.07)


def test_chat_quality_matches_tables_1_and_4():
    means = (69.7, 57.3, 59.0, 60.6, 71.8)  # Table 4, which prints ten times the mean grade
    assert quality(dict(zip(DIMENSIONS, (m / 10 for m in means), strict=True))) == pytest.approx(62.88, abs=0.01)
    assert sum(DIMENSIONS.values()) == 100


@pytest.mark.parametrize(("grade", "expected"), [(3, 30.0), (6, 60.0), (9, 90.0)])
def test_chat_quality_ranges_from_30_to_90(grade, expected):
    assert quality(dict.fromkeys(DIMENSIONS, grade)) == expected


def test_grade_changes_the_quality_by_its_weight():
    grades = {**dict.fromkeys(DIMENSIONS, 9), "content_utility": 3}
    assert quality(grades) == pytest.approx(75.0)  # 90 - 25 % of 60


@pytest.mark.parametrize(
    ("given", "intersection", "prefix"),
    [
        ([1, 2, 4, 5, 7], 1.0, 1.0),
        ([1, 2, 4], 0.6, 0.6),
        ([1, 2, 4, 5, 7, 6], 1.0, 5 / 6),
        ([1, 2, 3, 6], 0.4, 0.4),
        ([1, 4, 2, 5, 7], 1.0, 0.2),
        ([1, 1, 1, 1], 0.2, 0.2),
        ([2, 4], 0.4, 0.0),
        ([], 0.0, 0.0),
    ],
)
def test_path_score_has_two_forms(given, intersection, prefix):
    said = [f"stage{n}" for n in given]
    reference = [f"stage{n}" for n in (1, 2, 4, 5, 7)]
    assert path_score(said, reference) == pytest.approx(intersection)
    assert path_score(said, reference, "prefix") == pytest.approx(prefix)


@given(st.lists(st.sampled_from("abcde")), st.lists(st.sampled_from("abcde"), min_size=1, unique=True))
def test_full_path_score_requires_a_complete_path(given_path, reference):
    intersection = path_score(given_path, reference)
    prefix = path_score(given_path, reference, "prefix")
    assert 0.0 <= prefix <= 1.0 and 0.0 <= intersection <= 1.0
    assert (intersection == 1.0) == (set(reference) <= set(given_path))
    assert (prefix == 1.0) == (given_path == reference)


def test_classification_score_counts_only_known_fields():
    assert classification({**FIELDS, "EmotionTag": "Calm"}, FIELDS) == 0.75
    assert classification({"ConsumptionType": "Change"}, FIELDS) == 0.25
    assert classification(FIELDS, {"EmotionTag": "Calm"}) == 0.0
    assert classification({"a": True}, {"a": 1}) == 0.0
    with pytest.raises(ValueError):
        classification(FIELDS, {})


def output(**changes):
    path = ("stage1", "stage2", "stage4", "stage5", "stage7")
    given = {"fields": FIELDS, "cot": "", "path": path, "action": "TransHuman", "chat": "One moment."}
    return AgentOutput(**{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 100.0),
        ({"action": "GoodBye"}, 80.0),
        ({"fields": {**FIELDS, "EmotionTag": "Calm"}, "action": "ChangeOrder"}, 70.0),  # 0.4 * 3/4 + 0.4
        # Taken for an enquiry: 0.4 * 3/4 + 0.4 * 4/5 (stages 1, 2, 4, 5 of 1, 2, 3, 6, 4, 5) + 0
        (
            {
                "fields": {**FIELDS, "ConsumptionType": "Enquiry"},
                "path": ("stage1", "stage2", "stage3", "stage6", "stage4", "stage5"),
                "action": "ChangeOrder",
            },
            62.0,
        ),
        ({"fields": {}, "path": (), "action": ""}, 0.0),
    ],
)
def test_logic_score_of_one_turn_matches_hand_computed_values(changes, expected):
    reference = reference_of(TELECOM, FIELDS, BOUND)
    assert reference.action == "TransHuman"
    assert logic_score(output(**changes), reference, TELECOM).logic == pytest.approx(expected)


def test_reference_requires_all_labels_of_the_procedure():
    assert reference_of(TELECOM, {"ConsumptionType": "Change"}, BOUND) is None
    free = {"PackageStatus": "NoContract", "Penalty": 0}
    assert reference_of(TELECOM, {"ConsumptionType": "Change"}, free).action == "ChangeOrder"


def test_action_score_forms_agree_without_groups():
    for form in ("exact", "group"):
        assert action_score("GoodBye", "GoodBye", TELECOM, form) == 1.0
        assert action_score("GoodBye", "TransHuman", TELECOM, form) == 0.0
        assert action_score("nonsense", "TransHuman", TELECOM, form) == 0.0
