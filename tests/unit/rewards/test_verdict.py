"""Labels, soft and hard scores, and verdicts read from text."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.errors import VerdictUnparsable
from hamr.prompting.reading import LONGEST
from hamr.rewards.verdict import (
    DIMENSIONS,
    canonical_label,
    hard_score,
    parse_dimensions,
    parse_verdict,
    soft_score,
    verdict_place,
)


def test_soft_score_is_yes_plus_half_part():
    assert soft_score({"Yes": 0.6, "Part": 0.3, "No": 0.1}) == pytest.approx(0.75)


def test_probabilities_are_renormalised_over_labels_by_default():
    assert soft_score({"Yes": 0.3, "Part": 0.2, "No": 0.1}) == pytest.approx(0.4 / 0.6)
    assert soft_score({"Yes": 0.3, "Part": 0.2, "No": 0.1}, renormalise=False) == pytest.approx(0.4)


def test_every_alias_of_a_label_is_accepted():
    assert soft_score({"consistent": 0.5, "partially": 0.5, "inconsistent": 0.0}) == pytest.approx(0.75)
    assert soft_score({" 是": 0.2, "部分": 0.2, "否": 0.6}) == pytest.approx(0.3)


def test_two_labels_give_p_yes():
    assert soft_score({"yes": 0.2, "no": 0.2}) == pytest.approx(0.5)


@given(st.lists(st.floats(1e-6, 1.0), min_size=3, max_size=3), st.floats(0.01, 1.0))
def test_soft_score_is_scale_invariant_and_in_range(masses, scale):
    total = sum(masses)
    p = {label: mass / total for label, mass in zip(("yes", "part", "no"), masses, strict=True)}
    full = soft_score(p)
    assert 0.0 <= full <= 1.0
    assert soft_score({label: mass * scale for label, mass in p.items()}) == pytest.approx(full)


@pytest.mark.parametrize(
    "bad",
    [
        {"Yes": 0.5, "Maybe": 0.5}, {"Yes": 0.5, "yes": 0.5, "no": 0.0}, {"Yes": -0.1, "No": 0.5},
        {"Yes": math.nan, "No": 0.5}, {"Yes": 0.9, "No": 0.9}, {"Yes": 0.3, "Part": 0.1}, {"Part": 0.2, "No": 0.2},
    ],
)  # fmt: skip
def test_soft_score_rejects_invalid_distributions(bad):
    with pytest.raises(ValueError, match=r"label|probabilit"):
        soft_score(bad)


def test_label_may_be_absent_if_the_others_sum_to_one():
    assert soft_score({"Yes": 0.75, "Part": 0.25}) == pytest.approx(0.875)


@pytest.mark.parametrize("empty", [{}, {"Yes": 0.0, "Part": 0.0, "No": 0.0}])
def test_zero_label_mass_is_a_failure(empty):
    with pytest.raises(VerdictUnparsable):
        soft_score(empty)


@pytest.mark.parametrize(("said", "value"), [("Yes", 1.0), ("partially consistent", 0.5), ("不一致", 0.0)])
def test_hard_score_maps_labels_to_values(said, value):
    assert hard_score(said) == value


def test_hard_score_rejects_other_words():
    with pytest.raises(VerdictUnparsable, match="maybe"):
        hard_score("maybe")


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("Verdict: Yes", "yes"),
        ("They differ a little.\nVerdict: Part.", "part"),
        ("**Verdict:** No", "no"),
        ("**Verdict**: no", "no"),
        ("Verdict: Yes\nOn reflection:\nVerdict: No", "no"),
        ('{"detailed_consistency": {}, "judge_result": "Partially consistent"}', "part"),
        ("```json\n{\n \"judge_result\": \"inconsistent\"\n}\n```", "no"),
        ("分析如下。\n结论：部分一致。", "part"),
        ("  Yes.\n", "yes"),
        ("<think>Verdict: Yes?</think>\n\nVerdict: No", "no"),
    ],
)  # fmt: skip
def test_valid_verdicts_are_parsed(text, label):
    assert parse_verdict(text) == label


@pytest.mark.parametrize(
    "text",
    [
        "", "I think so", "Yes, they agree", "Verdict:", "Verdict: maybe", "Verdict: Yes and No",
        "Verdict: Yes\nVerdict: unsure", "<think>Verdict: Yes</think>", "Verdict: Yes/Part/No", "Consistent or not?",
    ],
)  # fmt: skip
def test_unparsable_verdict_is_none(text):
    assert parse_verdict(text) is None


@given(st.text())
def test_parsing_never_raises(text):
    assert parse_verdict(text) in ("yes", "part", "no", None)
    assert canonical_label(text) in ("yes", "part", "no", None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Yes.\nVerdict: No\nNothing else.", "No"),
        ("Verdict: Yes</think>Verdict: Part.", "Part."),
        ("Verdict: Yes\nVerdict: dunno", "dunno"),
        ("<think>No</think> yes", " yes"),
        ("no", "no"),
        ("", ""),
    ],
)
def test_verdict_position_matches_the_parsed_verdict(text, said):
    first, last = verdict_place(text)
    assert text[first:last] == said
    assert canonical_label(said) == parse_verdict(text)


def test_dimensions_are_parsed_if_all_five_are_given():
    lines = ["policy: Yes", "- **Operation**: No.", "collection: yes", "clarification: Yes", "scope: No"]
    found = {"policy": True, "operation": False, "collection": True, "clarification": True, "scope": False}
    assert parse_dimensions("The policy: yes, they agree.\n" + "\n".join(lines) + "\nVerdict: Part") == found
    assert parse_dimensions("policy: No\n" + "\n".join(lines))["policy"] is True
    assert parse_dimensions("政策：是\n操作：否\n收集：是\n澄清：是\n范围：否") == found
    assert parse_dimensions("\n".join(["POLİCY: no", *lines])) == found, "İ and I match without regard to case"
    assert parse_dimensions("\n".join(lines[:4])) == {}
    assert parse_dimensions("\n".join([*lines[:4], "scope: Part"])) == {}
    assert parse_dimensions("\n".join([*lines, "x" * LONGEST])) == {}
    assert tuple(found) == DIMENSIONS


@pytest.mark.parametrize("piece", ["\n", "-", "policy", "policy\n"])
def test_dimensions_are_parsed_in_linear_time(piece: str):
    """A quadratic expression would take an hour here."""
    lines = [f"{name}: yes" for name in DIMENSIONS]
    assert parse_dimensions("\n".join(["x" + piece * 500_000 + "x", *lines])) == dict.fromkeys(DIMENSIONS, True)
