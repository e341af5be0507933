"""A seeded source of broken texts, and what every reader in hamr has to make of them: a value or a typed failure.

Texts are mutations of valid ones, because random bytes never get past a reader's first line. The unit tier draws a
few thousand, the integration tier a hundred thousand.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from hamr.config.judged import ComparedConfig, GradedConfig, HallucinationConfig, RiskConfig, RubricConfig
from hamr.config.matching import MatchingConfig
from hamr.data.actions import ResponseFormat, customer_text, in_order, parse_action
from hamr.errors import VerdictUnparsable
from hamr.rewards.cot import read_cot_quality
from hamr.rewards.format import format_reward
from hamr.rewards.judged import JUDGED
from hamr.rewards.matching import MatchRules, match_action
from hamr.rewards.questions import words_of
from hamr.rewards.rubric import keeps_weight, parse_rubric
from hamr.rewards.rules import load_rules, rule_match
from hamr.rewards.utility import read_utility
from hamr.rewards.verdict import hard_score, parse_verdict
from hamr.types import Action, MalformedResponse, Reply, ServiceSample, ToolCall

VALID = (
    "The fee is 12 euros. Shall I go on?",
    '<tool_call>{"name": "look", "arguments": {"order": 7, "for": ["a", {"b": null}]}}</tool_call>',
    'One moment. <tool_call>{"name": "look", "parameters": {"order": "7"}}</tool_call>',
    '<think>A fee is due.</think><answer><tool_call>{"name": "look", "arguments": {}}</tool_call></answer>',
    "<answer>It is 12 euros.</answer><think>A fee is due.</think>",
    "<think>They agree.</think>\n\nVerdict: Part",
    '```json\n{"judge_result": "partially consistent"}\n```',
    "结论：部分一致",
    'Fine. {"reason": "polite", "score": 4}',
    '{"理由": "好", "得分": 5}',
    '{"reason": "b is best", "scores": {"R1": 2, "R2": 5, "R3": 3}}',
    '{"reason": "promises", "types": ["overcommitment"], "risk": "yes"}',
    '{"reason": "None", "judgment": "none"}',
    '{"reason": "r", "checks": {"I1": "met", "I2": "clear"}}',
    '{"complete_and_clear": "yes", "follows_policy": "no", "cot_quality": 3}',
    '{"reason": "r", "stage": "diagnostic", "vetoes": [], "judge_result": "available"}',
    '{"reason": "r", "rubric": [{"title": "Names the fee", "description": "Says 12.", "weight": 5}]}',
    "- **Names the fee** (w = 5): Says 12.\n2. Lies ($w = -2$): Says 13.",
)
PIECES = (
    "{", "}", "[", "]", '"', ":", ",", "\\", "\\u0000", "\\ud800", "\ud800", "\x00", "\u200b", "\u202e", "：", "\n",
    " " * 40,
    "<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>", "<|im_end|>", "[INST]", "```",
    "(w = ",
    "NaN", "Infinity", "-0", "1e400", "9" * 400, "9" * 5000, "0.1", "true", "null", '"score": ', '"score": 5}',
    "Verdict: ", "(((",
    "{" * 50, "[" * 300, "]" * 300, '{"a":' * 200, "* " * 60, "的", "İ", "ﬁ",
)  # fmt: skip

_SAMPLE = ServiceSample(
    id="s",
    ticket={},
    policy="",
    tools=(),
    history=(),
    references=(),
    privileged={
        "rubric": [{"title": "A", "description": "a", "weight": 5}, {"title": "B", "description": "b", "weight": -2}]
    },
)
_REFERENCES: tuple[Action, ...] = (
    Reply(content="Sure."),
    ToolCall(name="look", parameters={"order": {"op": "ge", "value": 3}, "for": {"op": "any"}}),
    ToolCall(name="look", parameters={"order": 7, "for": ["a", {"b": None}]}),
    ToolCall(name="look", parameters={"order": {"op": "contains", "value": "7"}}),
    ToolCall(name="look", parameters={"order": {"op": "in", "value": [7, "x", [1]]}}),
)
_FORMATS: tuple[ResponseFormat, ...] = ("plain", "think_answer", "answer_think")
_LENIENT = MatchRules(leniency=MatchingConfig(numeric_strings=True, constraints=True))
_RULES = load_rules()
_READERS: dict[str, tuple[Any, int]] = {
    "dialogue": (GradedConfig(), 1),
    "policy": (ComparedConfig(), 3),
    "tool": (ComparedConfig(), 1),
    "rubric": (RubricConfig(reading="items"), 1),
    "risk": (RiskConfig(), 1),
    "hallucination": (HallucinationConfig(), 1),
}


def texts(seed: int, count: int) -> Iterator[str]:
    """`count` texts, the same for the same seed: one to four mutations of a valid one each."""
    rng = Random(f"fuzz/{seed}")
    for _ in range(count):
        text = rng.choice(VALID)
        for _ in range(rng.randint(1, 4)):
            text = rng.choice(_MUTATIONS)(text, rng)
        yield text


def check(text: str) -> None:
    """Puts a text through every reader. Whatever one raises that is not its typed error comes through."""
    for response_format in _FORMATS:
        action = parse_action(text, response_format)
        assert isinstance(action, Reply | ToolCall | MalformedResponse)
        kept = not isinstance(action, MalformedResponse) and in_order(text, response_format)
        assert format_reward(text, action, response_format) == float(kept)
        words = customer_text(text, response_format)
        assert rule_match(words, _RULES) in (0.0, 1.0)
        if not isinstance(action, MalformedResponse):
            match = match_action(action, _REFERENCES, _LENIENT)
            assert (match.score is None) == isinstance(action, Reply)
            words_of(text, action, response_format)
    assert parse_verdict(text) in ("yes", "part", "no", None)
    _typed(lambda: hard_score(text))
    for name, (config, count) in _READERS.items():
        _typed(lambda name=name, config=config, count=count: _judged(name, text, config, count))
    _typed(lambda: read_cot_quality(text))
    _typed(lambda: read_utility(text))
    assert all(keeps_weight(item.weight) for item in parse_rubric(text))


def _judged(name: str, text: str, config: Any, count: int) -> None:
    for judgement in JUDGED[name].read(text, _SAMPLE, count, config):
        if judgement is not None:
            assert -1.0 <= JUDGED[name].value(judgement, config) <= 1.0
            json.dumps(judgement.reason, ensure_ascii=False).encode()


def _typed(read: Callable[[], Any]) -> None:
    with contextlib.suppress(VerdictUnparsable):
        read()


def _insert(text: str, rng: Random) -> str:
    at = rng.randint(0, len(text))
    return text[:at] + rng.choice(PIECES) + text[at:]


def _cut(text: str, rng: Random) -> str:
    return text[: rng.randint(0, len(text))]


def _drop(text: str, rng: Random) -> str:
    start = rng.randint(0, len(text))
    return text[:start] + text[start + rng.randint(1, 8) :]


def _repeat(text: str, rng: Random) -> str:
    start = rng.randint(0, len(text))
    end = start + rng.randint(1, 20)
    return text[:end] + text[start:end] * rng.randint(1, 5) + text[end:]


def _splice(text: str, rng: Random) -> str:
    return text + rng.choice(("", " ", "\n")) + rng.choice(VALID)


def _swap(text: str, rng: Random) -> str:
    """One JSON value for another kind of value."""
    marks = [i for i, c in enumerate(text) if c == ":"]
    if not marks:
        return _insert(text, rng)
    at = rng.choice(marks) + 1
    end = next((i for i in range(at, len(text)) if text[i] in ",}]"), len(text))
    return text[:at] + rng.choice((" 3", ' "x"', " null", " []", " {}", " NaN", " true", " 1e999", " 4.0")) + text[end:]


def _other_character(text: str, rng: Random) -> str:
    if not text:
        return chr(rng.randint(0, 0xD7FF))
    at = rng.randrange(len(text))
    return text[:at] + chr(rng.choice((rng.randint(0, 0x7F), rng.randint(0, 0xFFFF)))) + text[at + 1 :]


_MUTATIONS = (_insert, _insert, _cut, _drop, _repeat, _splice, _swap, _other_character)
