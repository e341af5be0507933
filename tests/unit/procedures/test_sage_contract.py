from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.procedures import load_scenario
from hamr.procedures.contract import Breach, Unreadable, read_output, words

TELECOM = load_scenario("telecom_package")
GOOD = {
    "classification_output": {
        "ConsumptionType": "Change",
        "ApplicationTendency": "Agree",
        "ConsumptionProfile": "Data",
        "EmotionTag": "Calm",
    },
    "cot": "The customer wants another package.",
    "now_path": ["stage1", "stage2", "stage4"],
    "finals": {"Action": "ChangeOrder"},
    "chat": "I have changed your package.",
}


def said(**changes):
    return json.dumps({**GOOD, **changes}, ensure_ascii=False)


def test_valid_answer_is_parsed_completely():
    reading = read_output(said(), TELECOM)
    assert reading.faults == ()
    assert reading.output.fields == GOOD["classification_output"]
    assert reading.output.path == ("stage1", "stage2", "stage4")
    assert reading.output.action == "ChangeOrder"
    assert reading.output.chat == GOOD["chat"]


def test_leading_thought_is_excluded_from_the_answer():
    assert read_output(f"<think>Let me see {{}}</think>\n{said()}", TELECOM).faults == ()
    assert read_output(f"<think>no end {said()}", TELECOM).kinds == ("text_around",)
    assert read_output(f"{said()}<think>after</think>", TELECOM).kinds == ("text_around",)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ("Of course!", "no_json"),
        ('{"cot": ', "no_json"),
        ("[" * 100_000 + "{", "no_json"),
        ('{"a":' * 100_000, "no_json"),
        (f"Here you are: {said()}", "text_around"),
        (f"```json\n{said()}\n```", "text_around"),
        (said() + said(), "text_around"),
        (said()[:-1] + ', "chat": "x"}', "doubled_key"),
        (said(mood="good"), "unknown_key"),
        (json.dumps({k: v for k, v in GOOD.items() if k != "cot"}), "missing_key"),
        (said(finals={}), "missing_key"),
        (said(finals={"Action": "GoodBye", "Plan": "A"}), "unknown_key"),
        (said(finals={"Action": 3}), "wrong_type"),
        (said(now_path="stage1"), "wrong_type"),
        (said(now_path=[1, 2]), "wrong_type"),
        (said(chat=None), "wrong_type"),
        (said(cot="x")[:-1] + ', "classification_output": NaN}', "no_json"),
    ],
)
def test_unreadable_answer_has_a_kind_and_no_output(text, kind):
    reading = read_output(text, TELECOM)
    assert reading.output is None
    assert reading.kinds == (kind,)
    assert kind in get_args(Unreadable)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"now_path": ["stage2", "stage4"]}, "path_start"),
        ({"now_path": []}, "path_start"),
        ({"now_path": ["stage1", "stage12"]}, "unknown_stage"),
        ({"finals": {"Action": "Dance"}}, "unknown_action"),
        ({"classification_output": {**GOOD["classification_output"], "EmotionTag": "Furious"}}, "unknown_label"),
        ({"classification_output": {**GOOD["classification_output"], "EmotionTag": None}}, "unknown_label"),
        ({"classification_output": {**GOOD["classification_output"], "Weather": "fine"}}, "unknown_field"),
        ({"chat": "  "}, "chat_empty"),
        ({"chat": "word " * 41}, "chat_long"),
        ({"chat": 'Say "yes"'}, "chat_characters"),
        ({"chat": "a [link]"}, "chat_characters"),
        ({"chat": "back\\slash"}, "chat_characters"),
    ],
)
def test_contract_breach_is_counted_and_the_rest_parsed(changes, kind):
    reading = read_output(said(**changes), TELECOM)
    assert reading.kinds == (kind,)
    assert kind in get_args(Breach)
    assert reading.output is not None


def test_truncated_answer_differs_from_invalid_json():
    assert read_output(said()[:-9], TELECOM, cut_off=True).kinds == ("cut_off",)
    assert read_output(said()[:-9], TELECOM).kinds == ("no_json",)
    assert read_output(said(), TELECOM, cut_off=True).faults == ()


def test_forty_words_are_allowed():
    assert read_output(said(chat="word " * 40), TELECOM).faults == ()
    assert read_output(said(chat="好" * 40), TELECOM).faults == ()
    assert read_output(said(chat="好" * 41), TELECOM).kinds == ("chat_long",)


def test_missing_or_mislabelled_field_has_no_label():
    labels = dict(GOOD["classification_output"])
    del labels["EmotionTag"]
    reading = read_output(said(classification_output=labels), TELECOM)
    assert reading.kinds == ("missing_field",)
    assert reading.output.fields == labels


def test_lone_surrogates_are_replaced():
    reading = read_output(said().replace("I have", "\\ud800 have"), TELECOM)
    reading.output.chat.encode("utf-8")
    assert reading.output.chat == "? have changed your package."


@pytest.mark.parametrize(("text", "count"), [("", 0), ("Hi, you two.", 3), ("您好", 2), ("套餐 Surf 40GB", 4)])
def test_words_are_counted_in_both_languages(text, count):
    assert words(text) == count


@given(st.text() | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(json.dumps))
def test_parsing_never_raises_and_output_requires_readable_text(text):
    reading = read_output(text, TELECOM)
    assert (reading.output is None) == any(kind in get_args(Unreadable) for kind in reading.kinds)


@given(
    st.fixed_dictionaries(
        {key: st.sampled_from([GOOD[key], None, {}, [], "x", {"Action": "x"}, ["stage1", "\ud800"]]) for key in GOOD}
    )
)
def test_any_json_object_is_parsed_or_rejected(raw):
    reading = read_output(json.dumps(raw), TELECOM)
    if reading.output is not None:
        json.dumps([reading.output.chat, list(reading.output.path), [f.detail for f in reading.faults]]).encode()
