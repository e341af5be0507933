"""Length bounds for JSON schemas, so that an answer fits its token budget.

A schema does not force an answer to end: a small model that repeats itself can write its reason until the tokens are
used up, and the verdict after it never comes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

MOST_ITEMS = 16
"""Maximum items of a list without a bound that is not a list of choices. A rubric has no more items either."""
SHORTEST_TEXT = 8
"""Minimum characters of every free text, whatever the token budget."""


def bound_lengths(schema: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """Bound every free text and list in `schema`, so that its longest answer has about `tokens` characters.

    A token is at least one character, except for bytes of rare characters, so an answer of that length fits into
    `tokens` tokens. The texts share equally the characters that keys, choices and punctuation leave.

    >>> bound_lengths({"type": "object", "properties": {"reason": {"type": "string"}}}, 60)["properties"]["reason"]
    {'type': 'string', 'maxLength': 45}
    """
    made = _bound_copy(schema, None)
    texts = sum(1 for _ in _texts(made))
    if texts:
        made = _bound_copy(schema, max(SHORTEST_TEXT, (tokens - _longest(made)) // texts))
    return made


def _bound_copy(schema: Mapping[str, Any], length: int | None) -> dict[str, Any]:
    """Return a copy with bounded lists and, if `length` is given, free texts of at most `length` characters."""
    out = dict(schema)
    if _is_text(out) and length is not None:
        out["maxLength"] = length
    if out.get("type") == "array":
        out.setdefault("maxItems", len(out.get("items", {}).get("enum", ())) or MOST_ITEMS)
    if isinstance(out.get("properties"), Mapping):
        out["properties"] = {name: _bound_copy(value, length) for name, value in out["properties"].items()}
    if isinstance(out.get("items"), Mapping):
        out["items"] = _bound_copy(out["items"], length)
    return out


def _is_text(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "string" and not {"maxLength", "pattern", "enum"} & schema.keys()


def _texts(schema: Mapping[str, Any]) -> Iterator[None]:
    """Yield once for every free text in the longest answer."""
    if _is_text(schema):
        yield None
    for value in schema.get("properties", {}).values():
        yield from _texts(value)
    if schema.get("type") == "array":
        for _ in range(schema["maxItems"]):
            yield from _texts(schema.get("items", {}))


def _longest(schema: Mapping[str, Any]) -> int:
    """Return the length of the longest answer with empty free texts, plus one character for the end."""
    return len(json.dumps(_example(schema), ensure_ascii=False)) + 1


def _example(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return max(schema["enum"], key=lambda value: len(json.dumps(value, ensure_ascii=False)))
    if schema.get("type") == "object":
        return {name: _example(value) for name, value in schema.get("properties", {}).items()}
    if schema.get("type") == "array":
        return [_example(schema.get("items", {}))] * schema["maxItems"]
    return "x" * schema.get("maxLength", 0) if schema.get("type") == "string" else 0
