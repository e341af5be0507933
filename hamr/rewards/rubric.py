"""Rubrics (second paper, Algorithm 1): question, parser, and filter of the items."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hamr.prompting.reading import TEXT, json_values, object_schema
from hamr.rewards.questions import judge_question
from hamr.types import Question, ServiceSample

_ITEM = object_schema(title=TEXT, description=TEXT, weight={"enum": [1, 2, 3, 4, 5, -1, -2]})
SCHEMA = object_schema(reason=TEXT, rubric={"type": "array", "items": _ITEM})

_BULLET = re.compile(r"[ \t]*(?:[-*•]|\d{1,4}[.)])?[ \t]*")
_WEIGHT = re.compile(
    r"[(（][ \t$]*(?:w|weight)[ \t]*[=:：][ \t]*(?P<weight>[-+]?\d{1,9}(?:\.\d{1,9})?)[ \t$]*[)）]", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class RubricItem:
    """One behaviour to check. `weight` is its importance: [1, 5] for a good behaviour, -1 or -2 for an error."""

    title: str
    description: str
    weight: float


def keeps_weight(weight: float, *, strict_integers: bool = False) -> bool:
    """Check the weight of an item (Algorithm 1, line 6): w in [1, 5] or w in {-2, -1}.

    As written, the condition accepts 2.5, while the prompt that generates the items asks for integers.
    `strict_integers` accepts integers only. 0, -3, 6 and NaN are always dropped.
    """
    kept = 1 <= weight <= 5 or weight in (-2, -1)
    return kept and (not strict_integers or float(weight).is_integer())


def parse_rubric(text: str, *, strict_integers: bool = False) -> tuple[RubricItem, ...]:
    """Return the valid items of a generated rubric, in order. Never raises; unparseable text gives no items.

    Accepted are a list of JSON items with `title`, `description` and `weight` (the last list, because an analysis
    precedes it), consecutive JSON objects, or lines such as `- Title (w = 5): Description.`. Only the weight is
    checked, as in Algorithm 1. An item without a title or a parseable weight is dropped.

    >>> [item.weight for item in parse_rubric("- Be kind (w = 5): Is kind.\\n- Lies (w = -3): Lies.")]
    [5.0]
    """
    raw = _json_items(text) or [fields for line in text.split("\n") if (fields := _line_fields(line))]
    items = (_item(fields) for fields in raw)
    return tuple(item for item in items if item and keeps_weight(item.weight, strict_integers=strict_integers))


def _item(fields: Mapping[str, Any]) -> RubricItem | None:
    title, description, weight = fields.get("title"), fields.get("description", ""), fields.get("weight")
    if not isinstance(title, str) or not title.strip(" *") or isinstance(weight, bool):
        return None
    try:
        value = float(weight) if isinstance(weight, (int, float, str)) else None
    except (ValueError, OverflowError):
        return None
    if value is None:
        return None
    return RubricItem(title=title.strip(" *"), description=str(description).strip(), weight=value)


def _line_fields(line: str) -> dict[str, str] | None:
    """Parse the fields of `- Title (w = 5): Description.` step by step.

    A single regular expression would need time that grows with the fourth power of the length of a blank line, which
    models do write.
    """
    found = _WEIGHT.search(line)
    if found is None:
        return None
    bullet = _BULLET.match(line, 0, found.start())
    title = line[bullet.end() if bullet else 0 : found.start()].strip(" \t*")
    if any(mark in title for mark in ":(（"):
        return None
    rest = line[found.end() :].lstrip(" \t*")
    described = rest[1:].lstrip(" \t*") if rest[:1] in (":", "：") else rest
    return {"title": title, "description": described, "weight": found["weight"]}


def _json_items(text: str) -> list[dict[str, Any]]:
    lists: list[list[dict[str, Any]]] = []
    single: list[dict[str, Any]] = []
    for value in json_values(text):
        if isinstance(value, dict) and "title" in value:
            single.append(value)
            continue
        for inner in value.values() if isinstance(value, dict) else [value]:
            items = [item for item in inner if isinstance(item, dict)] if isinstance(inner, list) else []
            if any("title" in item for item in items):
                lists.append(items)
    return lists[-1] if lists else single


def sample_rubric(sample: ServiceSample) -> tuple[RubricItem, ...]:
    """Return the rubric of a sample: `privileged.rubric`, a list of {"title", "description", "weight"}.

    Judges see it, the policy never does. Items that Algorithm 1 drops are dropped. Without a rubric there are no items.
    """
    rubric = sample.privileged.get("rubric", ())
    items = (_item(fields) for fields in rubric if isinstance(fields, Mapping))
    return tuple(item for item in items if item and keeps_weight(item.weight))


def rubric_question(
    sample: ServiceSample, responses: Sequence[str], *, prompt: str = "rubric_create.en", attempt: int = 0
) -> Question:
    """Ask a generator for a rubric, given the policy of the sample and responses of different quality.

    This is Algorithm 1, lines 1 and 2. `parse_rubric` parses the answer.
    """
    return judge_question(sample, prompt, SCHEMA, attempt=attempt, each=[{"response": text} for text in responses])
