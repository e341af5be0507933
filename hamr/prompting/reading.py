"""Strict parser of a judge's written answer. An unparseable answer is VerdictUnparsable, never a number.

An answer is an analysis that ends with one JSON object. Nothing may follow that object (except a closing code fence).
JSON that the judge quotes from the judged text, in an answer that is truncated later, is therefore not a verdict.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from hamr.errors import VerdictUnparsable

_ALIASES: Mapping[str, str] = {
    "理由": "reason", "原因": "reason", "得分": "score", "分数": "score", "评分": "score", "风险": "risk",
    "判断结果": "judgment", "判定结果": "judgment",
}  # fmt: skip
ANSWER_KEYS = (
    "score", "scores", "risk", "judgment", "checks", "judge_result", "cot_quality", "agrees", "total_score",
    "logic_consistency", "phrasing_check", "plans_anonymized", "actions_preserved", "actions_accuracy",
    "compliance_score", "structure_score", "anonymization_score",
    *(written for written, key in _ALIASES.items() if key != "reason"),
)  # fmt: skip
"""Keys that decide a reward, or what part of a teacher's work is used. Prompting ensures that untrusted text cannot
contain them as keys."""
_SHOWN = 120

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
    found = _ending_object(answer) if answer.endswith("}") else None
    if found is None:
        raise VerdictUnparsable(f"no JSON object at the end of {answer[-_SHOWN:]!r}")
    named = {_ALIASES.get(key.strip(), key.strip()): value for key, value in found.items()}
    if len(named) < len(found) or named.keys() != set(keys):
        raise VerdictUnparsable(f"the JSON object has the keys {sorted(found)[:12]}, expected {sorted(keys)}")
    return named


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
    said = " ".join(str(value).replace("_", " ").replace("-", " ").strip(" .。\"'`*").lower().split())
    if not isinstance(value, str) or said not in names:
        raise VerdictUnparsable(f"{value!r} is not among the labels {sorted(set(names.values()))}")
    return names[said]


def reason(value: Any) -> str:
    """Return the reason of a judge as valid UTF-8 text. Raise VerdictUnparsable if it is not a text."""
    if not isinstance(value, str):
        raise VerdictUnparsable(f"the reason {value!r} is not a text")
    return value.encode("utf-8", "replace").decode().strip()


def object_schema(**properties: Schema) -> Schema:
    """Return the JSON schema of an object with exactly these properties, in this order, so that the reason comes
    first."""
    return {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False,
    }  # fmt: skip


TEXT: Schema = {"type": "string"}
GRADE: Schema = {"enum": [1, 2, 3, 4, 5]}


def _ending_object(answer: str) -> dict[str, Any] | None:
    """Return the outermost JSON object that ends where `answer` ends."""
    decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse)
    start = answer.find("{")
    while start >= 0:
        try:
            value, end = decoder.raw_decode(answer, start)
        except (ValueError, RecursionError):
            end = -1
        if end == len(answer):
            # Reject escaped keys ("\u0073core"): no honest answer uses them, and they are not neutralised when quoted.
            return value if all(f'"{key}"' in answer[start:] for key in value) else None
        start = answer.find("{", start + 1)
    return None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("duplicate key")
    return dict(pairs)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
