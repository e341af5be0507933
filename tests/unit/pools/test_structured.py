"""Schemas whose longest answer fits a token limit."""

import json

import pytest

from hamr.pools.structured import MOST_ITEMS, SHORTEST_TEXT, bound_lengths
from hamr.prompting.reading import TEXT, object_schema
from hamr.rewards import graded, rubric


def longest(schema: dict, text: str = "x") -> object:
    """The longest answer that a bounded schema allows."""
    if "enum" in schema:
        return max(schema["enum"], key=lambda value: len(json.dumps(value)))
    if schema["type"] == "object":
        return {name: longest(value) for name, value in schema["properties"].items()}
    if schema["type"] == "array":
        return [longest(schema["items"])] * schema["maxItems"]
    return text * schema["maxLength"]


@pytest.mark.parametrize("schema", [graded.SCHEMA, object_schema(a=TEXT, b=TEXT, c={"enum": ["one", "other"]})])
@pytest.mark.parametrize("tokens", [60, 300, 2048])
def test_longest_answer_fits_the_token_limit(schema: dict, tokens: int) -> None:
    written = len(json.dumps(longest(bound_lengths(schema, tokens))))
    assert tokens - 4 <= written < tokens


def test_rubric_texts_share_the_length_and_its_list_is_bounded() -> None:
    made = bound_lengths(rubric.SCHEMA, 4096)
    items = made["properties"]["rubric"]
    assert items["maxItems"] == MOST_ITEMS
    lengths = {made["properties"]["reason"]["maxLength"]}
    lengths |= {items["items"]["properties"][name]["maxLength"] for name in ("title", "description")}
    assert len(lengths) == 1
    assert len(json.dumps(longest(made))) <= 4096


def test_list_of_choices_is_bounded_by_their_number() -> None:
    schema = object_schema(types={"type": "array", "items": {"enum": ["a", "b", "c"]}})
    assert bound_lengths(schema, 100)["properties"]["types"]["maxItems"] == 3


def test_existing_bounds_are_kept_and_the_schema_is_not_modified() -> None:
    schema = object_schema(a={"type": "string", "maxLength": 5}, b={"type": "string", "pattern": "^x$"}, c=TEXT)
    before = json.dumps(schema)
    made = bound_lengths(schema, 200)["properties"]
    assert (made["a"], made["b"]) == (schema["properties"]["a"], schema["properties"]["b"])
    assert made["c"]["maxLength"] > 100
    assert json.dumps(schema) == before


def test_few_tokens_leave_every_text_a_minimum_length() -> None:
    assert bound_lengths(graded.SCHEMA, 1)["properties"]["reason"]["maxLength"] == SHORTEST_TEXT
