"""Length, format, rules and the mix."""

import math
import unicodedata
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.data.actions import parse_action
from hamr.errors import ConfigError
from hamr.rewards.format import format_reward
from hamr.rewards.length import length_reward
from hamr.rewards.mix import mix
from hamr.rewards.rules import RuleBook, load_rules, rule_match
from hamr.types import Component, JudgeTimeout, JudgeUnparsable, MalformedResponse, Scored

# --- length ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "reference", "ratio", "expected"),
    [
        (0, 100, 0.5, 0.0), (100, 100, 0.5, 0.0), (101, 100, 0.5, -0.02), (125, 100, 0.5, -0.5),
        (149, 100, 0.5, -0.98), (150, 100, 0.5, -1.0), (151, 100, 0.5, -1.0), (10**6, 100, 0.5, -1.0),
        (15, 10, 2.0, -0.25), (0, 0, 1.0, 0.0), (1, 0, 1.0, -1.0),
    ],
)  # fmt: skip
def test_length_matches_hand_computed_values(length, reference, ratio, expected):
    assert length_reward(length, reference, ratio) == pytest.approx(expected, abs=1e-12)


@given(st.integers(0, 500), st.integers(0, 200), st.floats(0.01, 5))
def test_length_is_in_range_and_never_rises_with_length(length, reference, ratio):
    value = length_reward(length, reference, ratio)
    assert -1.0 <= length_reward(length + 1, reference, ratio) <= value <= 0.0


@pytest.mark.parametrize("bad", [(-1, 1, 1.0), (1, -1, 1.0), (1, 1, 0.0), (1, 1, -1.0), (1, 1, math.nan)])
def test_length_rejects_invalid_arguments(bad):
    with pytest.raises(ValueError, match=r"has to be|have to be"):
        length_reward(*bad)


# --- format ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("Hello", "plain", 1.0), ("", "plain", 0.0), ("<tool_call>{", "plain", 0.0),
        ("<think>a</think><answer>b</answer>", "think_answer", 1.0),
        ("<answer>b</answer><think>cut o", "think_answer", 0.0),
        ("<answer>b</answer><think>cut o", "answer_think", 1.0),
        ("<answer>b</answer>", "answer_think", 1.0), ("<think>a</think><answer>b</answer>", "answer_think", 0.0),
        ("<answer>b</answer>", "think_answer", 0.0),
    ],
)  # fmt: skip
def test_format_is_zero_or_one(text, kind, expected):
    assert format_reward(text, parse_action(text, kind), kind) == expected


# --- rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "As an AI  language model I cannot.", "That is STUPID!", "Please send me your password.",
        "What is your CVV?", "I promise you this will work.", "Dear [customer name], hello", "See {{ link }}.",
        "请加我微信聊", "请提供您的登录密码",
    ],
)  # fmt: skip
def test_shipped_rules_detect_violations(text):
    assert rule_match(text, load_rules()) == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "", "May I have your name, please?", "You can reset your password in the settings.", "Stupidly high? No.",
        "We never ask for a password.", "请问您的订单号是多少？",
    ],
)  # fmt: skip
def test_shipped_rules_accept_ordinary_text(text):
    assert load_rules().violations(text) == ()
    assert rule_match(text, load_rules()) == 1.0


def test_custom_rule_file_names_the_violations(tmp_path):
    file = tmp_path / "rules.yaml"
    file.write_text("name: mine\nversion: 3\nterms: [Free lunch]\npatterns: {digits: '\\d{4}'}\n")
    rules = load_rules(str(file))
    assert rules.version == 3
    assert rules.violations("a FREE  lunch for 1234") == ("Free lunch", "digits")
    assert rules.violations("carefree lunches") == ()


def test_terms_match_whole_words_in_every_alphabet(tmp_path):
    file = tmp_path / "rules.yaml"
    file.write_text("name: mine\nversion: 1\nterms: [gratuit, ber, 退款, 환불]\npatterns: {}\n", encoding="utf-8")
    rules = load_rules(str(file))
    for text in ("La gratuité", "über 20", "Liber"):
        assert rules.violations(text) == ()
    assert rules.violations("C'est gratuit! Ber.") == ("gratuit", "ber")
    assert rules.violations("我要退款了, 환불은") == ("退款", "환불")


def test_signs_of_letters_belong_to_their_word():
    tax = RuleBook(name="x", version=1, terms=("कर",), patterns={})
    assert tax.violations("कृपया इंतज़ार करें।") == () and tax.violations("कर कितना है?") == ("कर",)
    assert RuleBook(name="x", version=1, terms=("ราคา",), patterns={}).violations("ในราคานี้") == ("ราคา",)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_decomposed_letters_break_the_same_rules(form: Literal["NFC", "NFD"]):
    rules = RuleBook(name="x", version=1, terms=("cafe", "garantía"), patterns={"offered": "gratuité"})
    text = unicodedata.normalize(form, "the café, una garantía total, la gratuité")
    assert rules.violations(text) == ("garantía", "offered")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1, 2", "is not YAML"), ("- a", "must be a YAML mapping"),
        ("name: a\nversion: 1\nterms: []", "patterns: None: missing"),
        ("name: a\nversion: one\nterms: []\npatterns: {}", "integer"),
        ("name: a\nversion: 1\nterms: [3]\npatterns: {}", "terms.0"),
        ("name: a\nversion: 1\nterms: x\npatterns: {}", "must be a list"),
        ("name: a\nversion: 1\nterms: []\npatterns: {p: '('}", "not a regular expression"),
        ("name: a\nversion: 1\nterms: []\npatterns: []", "must be a section of keys"),
    ],
)  # fmt: skip
def test_invalid_rule_file_is_reported_in_one_line(tmp_path, content, said):
    file = tmp_path / "rules.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_rules(str(file))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_rule_file_is_named():
    with pytest.raises(ConfigError, match="no such file"):
        load_rules("/nowhere/rules.yaml")


# --- mix ---------------------------------------------------------------------------------------


def part(name, outcome, weight):
    return Component(name=name, outcome=outcome, weight=weight)


def test_mix_matches_hand_computed_values():
    parts = [
        part("a", Scored(value=0.5), 2.0),
        part("b", Scored(value=-1.0), 0.25),
        part("c", MalformedResponse(), 3.0),
    ]
    assert mix(parts) == Scored(value=0.75)


def test_first_weighted_failure_is_the_total():
    parts = [
        part("a", Scored(value=1.0), 1.0),
        part("b", JudgeUnparsable(detail="unweighted"), 0.0),
        part("c", JudgeTimeout(detail="first"), 0.5),
        part("d", JudgeUnparsable(detail="second"), 1.0),
    ]
    assert mix(parts) == JudgeTimeout(detail="first")
    assert mix(parts[:2]) == Scored(value=1.0)


def test_total_without_weights_is_zero():
    assert mix([]) == mix([part("a", Scored(value=1.0), 0.0)]) == Scored(value=0.0)
