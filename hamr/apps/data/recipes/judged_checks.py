"""Strict parsers of a judge's binary scores for a plan or a rationale.

Rewrite check (first paper, Appendix D.3.3): five scores. The paper gives no threshold; a plan passes with all five.
Planning check (D.3.5): three scores and their sum; it passes with 3. Rationale (D.3.4): agrees with the plan or not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hamr.errors import VerdictUnparsable
from hamr.prompting.reading import TEXT, Schema, choice, final_object, object_schema, reason

REWRITE_SCORES = ("logic_consistency", "phrasing_check", "plans_anonymized", "actions_preserved", "actions_accuracy")
PLANNING_SCORES = ("compliance_score", "structure_score", "anonymization_score")

_BIT: Schema = {"enum": [0, 1]}
REWRITE_SCHEMA = object_schema(
    reason=TEXT, **dict.fromkeys(REWRITE_SCORES, _BIT), violation_list={"type": "array", "items": TEXT}
)
PLANNING_SCHEMA = object_schema(reason=TEXT, **dict.fromkeys(PLANNING_SCORES, _BIT), total_score={"enum": [0, 1, 2, 3]})
AGREES_SCHEMA = object_schema(reason=TEXT, agrees={"enum": ["yes", "no"]})
_YES_NO = {"yes": "yes", "是": "yes", "no": "no", "否": "no"}


def read_rewrite_check(text: str) -> tuple[dict[str, int], str]:
    """Return ({score: 0 or 1}, the violations). Raises VerdictUnparsable, also for violations where every score is
    1."""
    answer = final_object(text, ("reason", *REWRITE_SCORES, "violation_list"))
    scores = _bits(answer, REWRITE_SCORES)
    listed = answer["violation_list"]
    if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
        raise VerdictUnparsable(f"violation_list={listed!r} is not a list of texts")
    if listed and all(scores.values()):
        raise VerdictUnparsable(f"violation_list={listed!r} contradicts the scores {scores}")
    return scores, "; ".join(map(reason, listed))


def read_planning_check(text: str) -> tuple[dict[str, int], str]:
    """Return ({score: 0 or 1}, the reason). Raises VerdictUnparsable, also where the total is not the sum."""
    answer = final_object(text, ("reason", *PLANNING_SCORES, "total_score"))
    scores = _bits(answer, PLANNING_SCORES)
    if answer["total_score"] != sum(scores.values()):
        raise VerdictUnparsable(f"total_score={answer['total_score']!r} is not the sum of {scores}")
    return scores, reason(answer["reason"])


def read_agreement(text: str) -> tuple[bool, str]:
    """Return (whether the rationale agrees, the reason). Raises VerdictUnparsable."""
    answer = final_object(text, ("reason", "agrees"))
    return choice(answer["agrees"], _YES_NO) == "yes", reason(answer["reason"])


def _bits(answer: Mapping[str, Any], names: Sequence[str]) -> dict[str, int]:
    for name in names:
        if isinstance(answer[name], bool) or answer[name] not in (0, 1):
            raise VerdictUnparsable(f"{name}={answer[name]!r} is neither 0 nor 1")
    return {name: int(answer[name]) for name in names}
