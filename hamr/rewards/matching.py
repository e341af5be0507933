"""Score without a model: the type of a response and the parameters of a tool call.

Parameters must be equal. `rewards.consistency.matching` allows two leniencies, for all tools or for one: a number
agrees with its text, and an object `{"op": ..., "value": ...}` of a reference is a constraint:

| op       | also written                     | a value v satisfies it when                       |
|----------|----------------------------------|---------------------------------------------------|
| eq       | is, equals, is_equal_to          | v = value                                         |
| ne       | is_not, is_not_equal_to          | v != value                                        |
| lt, le   | is_less_than; lte, is_at_most    | v < value, v <= value (numbers only)              |
| gt, ge   | is_greater_than; gte, is_at_least| v > value, v >= value (numbers only)              |
| in       | is_one_of                        | v equals an element of the list `value`           |
| contains |                                  | text v contains `value`, or list v an equal element |
| any      |                                  | always; the parameter must be present              |

A response may then give a value that satisfies the constraint, or the same constraint (the query languages of public
corpora pass constraints as arguments). An object with another `op` is an ordinary value.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from hamr.config.matching import Leniency, MatchingConfig
from hamr.data.words import repetitions, words_of
from hamr.errors import DataError
from hamr.types import Action, Reference, Reply, ToolCall

_OPS = {
    "eq": "eq", "is": "eq", "equals": "eq", "is_equal_to": "eq",
    "ne": "ne", "is_not": "ne", "is_not_equal_to": "ne",
    "lt": "lt", "is_less_than": "lt",
    "le": "le", "lte": "le", "is_at_most": "le",
    "gt": "gt", "is_greater_than": "gt",
    "ge": "ge", "gte": "ge", "is_at_least": "ge",
    "in": "in", "is_one_of": "in",
    "contains": "contains",
    "any": "any",
}  # fmt: skip

# A leading zero marks an identifier ("007"), so only the JSON notation of a number counts as a number.
_NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,63})(?:\.\d{1,64})?")


@dataclass(frozen=True, kw_only=True)
class MatchRules:
    """Comparison rules.

    `leniency`: which different parameters agree. `verbatim`: a reply identical to a reference (except for white space)
    needs no scorer. `repeated_words`: a reply that says so many words in a row twice scores 0 (None: not checked).
    `allowed_repetitions`: phrases that it may say twice. `call_credit`: maximum score of a call of the right tool with
    a wrong parameter.
    """

    leniency: MatchingConfig = field(default_factory=MatchingConfig)
    verbatim: bool = False
    repeated_words: int | None = None
    allowed_repetitions: tuple[str, ...] = ()
    call_credit: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Match:
    """Result of the comparison of types and parameters.

    `score` is 0.0 or 1.0, a value between them for a call with credit, or None if scorers are needed. A reply with 1.0
    repeats a reference, and one with 0.0 itself. `reference` is the index of the reference that a tool call matches or
    a reply repeats. `ask` holds the indices of the references that the scorers compare a reply with.
    """

    kind: Literal["type_mismatch", "tool_call", "reply"]
    score: float | None
    reference: int | None = None
    ask: tuple[int, ...] = ()


def match_action(action: Action, references: Sequence[Reference | Action], rules: MatchRules | None = None) -> Match:
    """Compare an action with the acceptable ones (hybrid reward, section 3.3).

    If no reference has the type of the action, the score is exactly 0, without a model. A tool call scores 1 if its
    name and all of its parameters agree with some reference, else 0; extra and missing parameters disagree. For a
    reply, `ask` holds the reply references; tool-call references are ignored as alternative actions. Under
    `rules.verbatim` a reply that repeats a reference scores 1; under `rules.repeated_words` one that repeats itself, in
    words that no reference repeats and that are not allowed, scores 0. With `rules.call_credit` c, a call of the right
    tool with k of n agreeing parameters scores c (1 + k) / (1 + n); n includes extra and missing ones.

    >>> match_action(Reply(content="Hi"), [Reference(action=ToolCall(name="lookup"))]).score
    0.0

    Raises DataError for an empty list: without a reference there is nothing that could be right.
    """
    if not references:
        raise DataError("references", [], "a sample needs at least one reference")
    rules = rules or MatchRules()
    acceptable = [r.action if isinstance(r, Reference) else r for r in references]
    same_type = tuple(i for i, other in enumerate(acceptable) if isinstance(other, type(action)))
    if not same_type:
        return Match(kind="type_mismatch", score=0.0)
    if isinstance(action, Reply):
        words = action.content.split()
        for index in same_type if rules.verbatim else ():
            other = acceptable[index]
            if isinstance(other, Reply) and other.content.split() == words:
                return Match(kind="reply", score=1.0, reference=index)
        if rules.repeated_words is not None:
            replies = [other.content for other in acceptable if isinstance(other, Reply)]
            if repeats_itself(action.content, replies, rules.repeated_words, rules.allowed_repetitions):
                return Match(kind="reply", score=0.0)
        return Match(kind="reply", score=None, ask=same_type)
    for index in same_type:
        other = acceptable[index]
        if isinstance(other, ToolCall) and same_call(action, other, rules.leniency):
            return Match(kind="tool_call", score=1.0, reference=index)
    calls = [other for other in acceptable if isinstance(other, ToolCall)]
    credit = max(agreement(action, other, rules.leniency) for other in calls) if rules.call_credit else 0.0
    return Match(kind="tool_call", score=rules.call_credit * credit)


def repeats_itself(reply: str, references: Sequence[str], size: int, allowed: tuple[str, ...] = ()) -> bool:
    """Return True if a reply says `size` words in a row twice that are in no `allowed` phrase, and no reference does.

    >>> question = "Do you mainly use data, or do you mainly make calls?"
    >>> repeats_itself(question, [], 3), repeats_itself(question, [], 3, ("do you mainly",))
    (True, False)
    """
    again = repetitions(reply, size)
    if again and allowed:
        phrases = _words_of_phrases(allowed)
        again = {words for words in again if f" {' '.join(words)} " not in phrases}
    return bool(again) and not any(again <= repetitions(reference, size) for reference in references)


@functools.lru_cache(maxsize=8)
def _words_of_phrases(phrases: tuple[str, ...]) -> str:
    """Return the words of each phrase on a line of its own, with spaces around each word."""
    return "\n".join(f" {' '.join(words_of(phrase))} " for phrase in phrases)


def agreement(call: ToolCall, reference: ToolCall, matching: MatchingConfig) -> float:
    """Return the share of tool and parameters that agree; 0 for another tool."""
    if call.name.strip() != reference.name.strip():
        return 0.0
    given, wanted, leniency = call.parameters, reference.parameters, matching.of(reference.name.strip())
    same = sum(_agrees(given[key], wanted[key], leniency) for key in given.keys() & wanted.keys())
    return (1 + same) / (1 + len(given.keys() | wanted.keys()))


def same_call(call: ToolCall, reference: ToolCall, matching: MatchingConfig | None = None) -> bool:
    """Return True if name and parameters agree.

    The order of keys and white space around values are ignored. Keys must be spelled as in the schema of the tool.
    """
    given, wanted = call.parameters, reference.parameters
    leniency = (matching or MatchingConfig()).of(reference.name.strip())
    return (
        call.name.strip() == reference.name.strip()
        and given.keys() == wanted.keys()
        and all(_agrees(given[key], wanted[key], leniency) for key in wanted)
    )


def canonical(value: Any, leniency: Leniency | None = None) -> tuple[Any, ...]:
    """Return a canonical form that is equal for equal values. It is tagged, so that True is not 1 and null is not "".

    Text is trimmed. Numbers are exact decimals. The order of keys in an object is discarded, that of a list is kept.
    """
    leniency = leniency or Leniency()
    if value is None:
        return ("null",)
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, (int, float)):
        return ("number", Decimal(repr(value) if isinstance(value, float) else value))
    if isinstance(value, str):
        text = value.strip()
        if leniency.numeric_strings and _NUMBER.fullmatch(text):
            return ("number", Decimal(text))
        return ("text", text)
    if isinstance(value, Mapping):
        items = {str(key): canonical(item, leniency) for key, item in value.items()}
        return ("object", tuple(sorted(items.items(), key=lambda item: item[0])))
    if isinstance(value, Sequence):
        return ("list", *(canonical(item, leniency) for item in value))
    raise DataError("parameters", value, "is not a JSON value")


def _agrees(given: Any, wanted: Any, leniency: Leniency) -> bool:
    constraint = _constraint(wanted) if leniency.constraints else None
    if constraint is None:
        return canonical(given, leniency) == canonical(wanted, leniency)
    stated = _constraint(given)
    if stated is not None:
        return stated[0] == constraint[0] and _bind_constraint(stated, leniency) == _bind_constraint(
            constraint, leniency
        )
    return _satisfies(given, *constraint, leniency)


def _constraint(value: Any) -> tuple[str, Any] | None:
    """Return (operator, bound) of a constraint, None for an ordinary value."""
    if not isinstance(value, Mapping) or not {"op"} <= value.keys() <= {"op", "value"}:
        return None
    op = _OPS.get(value["op"]) if isinstance(value["op"], str) else None
    if op is None or ("value" not in value and op != "any"):
        return None
    return op, value.get("value")


def _bind_constraint(constraint: tuple[str, Any], leniency: Leniency) -> Any:
    op, bound = constraint
    if op == "any":
        return None
    if op == "in" and isinstance(bound, Sequence) and not isinstance(bound, str):
        return frozenset(canonical(item, leniency) for item in bound)
    return canonical(bound, leniency)


def _satisfies(given: Any, op: str, bound: Any, leniency: Leniency) -> bool:
    value = canonical(given, leniency)
    if op == "any":
        return True
    if op == "in":
        choices = bound if isinstance(bound, Sequence) and not isinstance(bound, str) else [bound]
        return value in [canonical(item, leniency) for item in choices]
    limit = canonical(bound, leniency)
    if op in ("eq", "ne"):
        return (value == limit) == (op == "eq")
    if op == "contains":
        if isinstance(given, str) and isinstance(bound, str):
            return bound.strip() in given
        return value[0] == "list" and limit in value[1:]
    if value[0] != "number" or limit[0] != "number":
        return False
    x, y = value[1], limit[1]
    return bool({"lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}[op])
