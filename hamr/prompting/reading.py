"""Strict parser of a judge's written answer. An unparseable answer is VerdictUnparsable, never a number.

An answer is an analysis that ends with one JSON object. Nothing may follow that object (except a closing code fence).
JSON that the judge quotes from the judged text, in an answer that is truncated later, is therefore not a verdict.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hamr.errors import VerdictUnparsable
from hamr.files import encodable, refuse_constant, unique_keys

_ALIASES: Mapping[str, str] = {
    "理由": "reason", "原因": "reason", "得分": "score", "分数": "score", "评分": "score", "风险": "risk",
    "判断结果": "judgment", "判定结果": "judgment",
}  # fmt: skip
ANSWER_KEYS = (
    "score", "scores", "risk", "judgment", "checks", "judge_result", "cot_quality", "agrees", "total_score",
    "logic_consistency", "phrasing_check", "plans_anonymized", "actions_preserved", "actions_accuracy",
    "compliance_score", "structure_score", "anonymization_score",
    "current_decision", "action_details", "subsequent_plan",
    *(written for written, key in _ALIASES.items() if key != "reason"),
)  # fmt: skip
"""Keys that decide a reward, or what part of a teacher's work is used. Prompting ensures that untrusted text cannot
contain them as keys."""
LONGEST = 100_000
"""Number of characters at the end of an answer in which its JSON object is looked for. An endpoint may send more than
it was asked for."""
_SHOWN = 120
_MARK = re.compile(r'\\[\\"]|["{}\[\]]')
"""Characters that decide where a JSON object starts, and the escapes that hide one of them."""

Schema = dict[str, Any]


def final_object(text: str, keys: Sequence[str]) -> dict[str, Any]:
    """Return the JSON object at the end of `text`, with exactly `keys`.

    Keys may be written in Chinese where a table here has them. A duplicate key, NaN, another set of keys, or text after
    the object makes the answer unparseable. VerdictUnparsable then contains the end of the answer.

    >>> final_object('Not bad. {"reason": "polite", "score": 4}', ["reason", "score"])["score"]
    4

    Raises VerdictUnparsable, with the end of the answer.
    """
    answer = text.strip().removesuffix("```").rstrip()
    if answer.startswith("<think>") and "</think>" not in answer:
        raise VerdictUnparsable(f"the reasoning does not end: {answer[-_SHOWN:]!r}")
    found = _ending_object(answer)
    if found is None:
        raise VerdictUnparsable(f"no JSON object at the end of {answer[-_SHOWN:]!r}")
    value, written = found
    named = {_ALIASES.get(key.strip(), key.strip()): item for key, item in value.items()}
    if len(named) < len(value) or named.keys() != set(keys):
        shown = str(sorted(value)[:12])[: 2 * _SHOWN]
        raise VerdictUnparsable(f"the JSON object has the keys {shown}, expected {sorted(keys)}")
    # Reject escaped keys ("\u0073core"): no honest answer uses them, and they are not neutralised when quoted.
    if not all(f'"{key}"' in written for key in value):
        raise VerdictUnparsable(f"a key of the JSON object is escaped: {answer[-_SHOWN:]!r}")
    return named


def json_values(text: str, opening: str = r"[\[{]") -> Iterator[Any]:
    """Yield every outermost JSON value in a text that starts with one of `opening` (a pattern), in order."""
    decoder, start, position = json.JSONDecoder(), re.compile(opening), 0
    while (found := start.search(text, position)) is not None:
        try:
            value, position = decoder.raw_decode(text, found.start())
        except (ValueError, RecursionError):
            position = found.start() + 1
            continue
        yield value


def grade(value: Any) -> int:
    """Return an integer from 1 to 5, written as a number. Raise VerdictUnparsable for anything else ("5", true, 4.5,
    6)."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole or (isinstance(value, float) and value.is_integer())) or not 1 <= value <= 5:
        raise VerdictUnparsable(f"{value!r} is not a grade; a grade is an integer from 1 to 5")
    return int(value)


def choice(value: Any, names: Mapping[str, str]) -> str:
    """Return the canonical name of a label, given its written `names` (lower case -> canonical).

    Case, surrounding punctuation, and "_" or "-" for a space are ignored. Raise VerdictUnparsable for anything else.
    """
    name = " ".join(str(value).replace("_", " ").replace("-", " ").strip(" .。\"'`*").lower().split())
    if not isinstance(value, str) or name not in names:
        raise VerdictUnparsable(f"{value!r} is not among the labels {sorted(set(names.values()))}")
    return names[name]


def reason(value: Any) -> str:
    """Return the reason of a judge as valid UTF-8 text. Raise VerdictUnparsable if it is not a text."""
    if not isinstance(value, str):
        raise VerdictUnparsable(f"the reason {value!r} is not a text")
    return encodable(value).strip()


def object_schema(**properties: Schema) -> Schema:
    """Return the JSON schema of an object with exactly these properties, in this order, so that the reason comes
    first."""
    return {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False,
    }  # fmt: skip


TEXT: Schema = {"type": "string"}
GRADE: Schema = {"enum": [1, 2, 3, 4, 5]}


def _ending_object(answer: str) -> tuple[dict[str, Any], str] | None:
    """Return the JSON object that ends where `answer` ends, and its text.

    Its brackets are matched from the end, so that the time is linear in the length.
    """
    if not answer.endswith("}"):
        return None
    depth, quoted = 0, False
    tail = answer[-LONGEST:]
    for match in reversed(list(_MARK.finditer(tail))):
        mark = match[0]
        if mark == '"':
            quoted = not quoted
        elif not quoted and mark in "}]":
            depth += 1
        elif not quoted and mark in "{[":
            depth -= 1
            if depth == 0:
                break
    else:
        return None
    text = tail[match.start() :]
    try:
        value = json.loads(text, object_pairs_hook=unique_keys, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return None
    return value, text
