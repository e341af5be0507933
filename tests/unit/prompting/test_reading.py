"""Strict parsing of judge answers: valid ones, and texts that only resemble them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.errors import VerdictUnparsable
from hamr.files import refuse_constant, unique_keys
from hamr.prompting.reading import LONGEST, _ending_object, choice, final_object, grade, reason
from hamr.rewards.graded import normalise_grade, read_grade

GOOD = '{"reason": "polite and right", "score": 4}'


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"The agent greets.\n\n{GOOD}\n",
        f"[Analysis]\nFine.\n[JSON]\n```json\n{GOOD}\n```",
        f'<think>{{"reason": "no", "score": 1}}</think>\n{GOOD}',
        f"opened by the chat template</think>{GOOD}",
        f'One could say {{"reason": "weak", "score": 2}}, but: {GOOD}',
        f"Curly {{ braces }} and {{x: 1}} in the analysis. {GOOD}",
        '先分析：回复得体。\n{"理由": "语气得体", "得分": 4}',
        '{"reason": "语气得体，信息准确", "score": 4}',
        '{"score": 4, "reason": ""}',
        '{"reason": "integral", "score": 4.0}',
    ],
)
def test_well_formed_answers_are_parsed(text):
    assert read_grade(text, "dialogue").grade == 4


@pytest.mark.parametrize(
    "text",
    [
        "", " ", ":", "Solution", "Let us think step by step", "4", "score: 4", "Score: 4/5", "得分：4",
        '{"reason": "cut off", "score": 4',
        '{"reason": "cut off',
        f"{GOOD} I hope this helps!",
        f"{GOOD}\nOn second thought: 2",
        f'The response says {GOOD} which is a trick, so my own',
        f'{GOOD}\n{{"reason": "the second one is cut',
        '{"score": 4}',
        '{"reason": "x", "score": 4, "confidence": 1}',
        '{"reason": "x", "score": 4, "score": 5}',
        '{"reason": "x", "score": "4"}',
        '{"reason": "x", "score": 4.5}',
        '{"reason": "x", "score": 0}',
        '{"reason": "x", "score": 6}',
        '{"reason": "x", "score": true}',
        '{"reason": "x", "score": null}',
        '{"reason": "x", "score": NaN}',
        '{"reason": "x", "score": 1e400}',
        '{"reason": 5, "score": 4}',
        '{"reason": null, "score": 4}',
        '{"reason": "x", "理由": "y", "score": 4}',
        '{"verdict": {"reason": "x", "score": 4}}',
        f"[{GOOD}]",
        "{'reason': 'x', 'score': 4}",
        f"{GOOD}</think>",
        f"<think>I could say {GOOD}",
        '{"reason": "x", "score": 4}}',
        '{"a":' * 5000,
        "{" * 20000 + "}",
    ],
)  # fmt: skip
def test_other_answers_are_unparsable_and_never_a_number(text):
    with pytest.raises(VerdictUnparsable):
        read_grade(text, "dialogue")


def test_very_long_analysis_does_not_hide_the_verdict():
    assert read_grade("It goes on. " * 20_000 + GOOD, "dialogue").grade == 4


def test_a_lone_surrogate_in_a_reason_can_be_stored():
    judgement = read_grade('{"reason": "half \\ud83d", "score": 2}', "dialogue")
    json.dumps(judgement.reason, ensure_ascii=False).encode()
    assert judgement.grade == 2


@given(st.text(), st.integers(1, 5), st.text())
def test_analysis_and_reason_do_not_change_the_verdict(analysis, given_grade, why):
    text = analysis + json.dumps({"reason": why, "score": given_grade})
    try:
        judgement = read_grade(text, "x")
    except VerdictUnparsable:
        # The analysis may open an object or a string that swallows the verdict; then there is none.
        assert "{" in analysis
    else:
        assert judgement.grade == given_grade


@given(st.text(alphabet='{}[]":,0123456789 scorean\\\n', max_size=80))
def test_parsing_raises_only_verdict_unparsable(text):
    try:
        said = final_object(text, ("reason", "score"))
    except VerdictUnparsable:
        return
    assert said.keys() == {"reason", "score"}


@given(st.text(alphabet='{}[]":,01 sa\\u', max_size=40), st.text(alphabet='{}[]":,01 sa\\u', max_size=20))
def test_the_object_is_the_only_one_that_ends_with_the_text(before: str, inner: str) -> None:
    """The definition, in time that grows with the square of the length: some suffix of the text is an object."""
    for text in (before, before + json.dumps({"s": inner, "a": [inner]})):
        suffixes = [text[start:] for start, mark in enumerate(text) if mark == "{"]
        values = [value for value in map(parse, suffixes) if value is not None]
        found = _ending_object(text)
        assert values == ([] if found is None else [found[0]])


def parse(text: str) -> object:
    try:
        return json.loads(text, object_pairs_hook=unique_keys, parse_constant=refuse_constant)
    except ValueError:
        return None


@pytest.mark.parametrize(
    "text",
    [
        '{"a":' * 250_000,
        '{"a":' * 250_000 + "1" + "}" * 250_000,
        '{"a":[' * 250_000 + "]}" * 250_000,
        "{" * 1_000_000 + "}",
        '{"score": "' * 120_000 + '"}',
        '{"reason": "' + "x" * LONGEST + '", "score": 4}',
        "{" + ", ".join(f'"{key}": 1' for key in range(200_000)) + "}",
    ],
    ids=lambda text: text[:12],
)
def test_overlong_answer_is_parsed_at_most_once_and_rejected(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    loads = json.loads

    def count(part: str, **options: Any) -> Any:
        sizes.append(len(part))
        return loads(part, **options)

    monkeypatch.setattr(json, "loads", count)
    with pytest.raises(VerdictUnparsable) as error:
        final_object(text, ("reason", "score"))
    assert len(sizes) <= 1 and sum(sizes) <= LONGEST
    assert len(str(error.value)) < 1000


def test_choices_must_be_whole_labels():
    names = {"no hallucination": "none", "factual": "factual"}
    assert choice(" No_Hallucination. ", names) == "none"
    for bad in ("not factual", "factual or none", "", None, 1, ["factual"], {"factual": 1}):
        with pytest.raises(VerdictUnparsable):
            choice(bad, names)


def test_grades_map_to_both_scales():
    assert [normalise_grade(x, "span") for x in range(1, 6)] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert [normalise_grade(x, "share") for x in range(1, 6)] == [0.2, 0.4, 0.6, 0.8, 1.0]
    for x in (0, 6):
        with pytest.raises(ValueError):
            normalise_grade(x, "span")
    assert (grade(5), reason(" a ")) == (5, "a")
