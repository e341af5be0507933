"""Rubrics (second paper, Algorithm 1): asking for one, reading it, and which items are kept."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hamr.prompting.reading import TEXT, object_schema
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
    """One behaviour to look for. `weight` says how much it matters: [1, 5] is good, -1 or -2 is an error."""

    title: str
    description: str
    weight: float


def keeps_weight(weight: float, *, strict_integers: bool = False) -> bool:
    """Algorithm 1, line 6: w in [1, 5] or w in {-2, -1}.

    As written it lets 2.5 pass, while the prompt that generates the items asks for integers: `strict_integers`
    decides. 0, -3 and 6 are dropped either way, and so is NaN.
    """
    kept = 1 <= weight <= 5 or weight in (-2, -1)
    return kept and (not strict_integers or float(weight).is_integer())


def parse_rubric(text: str, *, strict_integers: bool = False) -> tuple[RubricItem, ...]:
    """The valid items that a generator wrote, in its order. Never raises; nothing readable gives no items.

    Read are JSON items with `title`, `description` and `weight` (the last list of them wins: what comes before it
    is the analysis), JSON objects one after the other, or else lines such as `- Title (w = 5): Description.`.
    Only the weight is checked, as in Algorithm 1; an item without a title or a readable weight is none.

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
    """The fields of `- Title (w = 5): Description.`, step by step: one expression for all of it would take time that
    grows with the fourth power of a line of blanks, which models write."""
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
    for value in _json_values(text):
        if isinstance(value, dict) and "title" in value:
            single.append(value)
            continue
        for inner in value.values() if isinstance(value, dict) else [value]:
            items = [item for item in inner if isinstance(item, dict)] if isinstance(inner, list) else []
            if any("title" in item for item in items):
                lists.append(items)
    return lists[-1] if lists else single


def _json_values(text: str) -> Iterator[Any]:
    """Every outermost JSON object or array in a text, in order."""
    decoder = json.JSONDecoder()
    position = 0
    while (found := re.compile(r"[\[{]").search(text, position)) is not None:
        try:
            value, position = decoder.raw_decode(text, found.start())
        except (ValueError, RecursionError):
            position = found.start() + 1
            continue
        yield value


def sample_rubric(sample: ServiceSample, *, strict_integers: bool = False) -> tuple[RubricItem, ...]:
    """The rubric that travels with a sample: `privileged.rubric`, a list of {"title", "description", "weight"}. Judges
    see it, the policy never does. Items that Algorithm 1 drops are dropped here too; no rubric gives no items."""
    rubric = sample.privileged.get("rubric", ())
    items = (_item(fields) for fields in rubric if isinstance(fields, Mapping))
    return tuple(item for item in items if item and keeps_weight(item.weight, strict_integers=strict_integers))


def rubric_question(
    sample: ServiceSample, responses: Sequence[str], *, prompt: str = "rubric_create.en", attempt: int = 0
) -> Question:
    """Asks a generator for a rubric, from the sample's policy and responses of differing quality (Algorithm 1, lines 1
    and 2); `parse_rubric` reads what it writes."""
    return judge_question(sample, prompt, SCHEMA, attempt=attempt, each=[{"response": text} for text in responses])
