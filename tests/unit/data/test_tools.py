"""Calls are checked against the schema of their tool."""

from __future__ import annotations

from typing import Any

import pytest

from hamr.data.samples import from_json
from hamr.data.tools import parameter_problem
from hamr.errors import DataError


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("integer", "three", "must be a whole number, as the schema says"),
        ("integer", 3.5, "must be a whole number"),
        ("integer", True, "must be a whole number"),
        ("string", 77, "must be a text"),
        ("number", "7", "must be a number"),
        ("boolean", 1, "must be true or false"),
        ("array", "a", "must be a list"),
        ("object", [], "must be an object"),
        (["string", "null"], 7, "must be a text or null"),
    ],
)
def test_argument_of_another_type_is_refused(kind: Any, value: Any, said: str) -> None:
    found = parameter_problem({"a": value}, {"properties": {"a": {"type": kind}}})
    assert found is not None and found[0] == "a" and found[1].startswith(said)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "number"}, 3),
        ({"type": "integer"}, 3.0),
        ({"type": ["string", "null"]}, None),
        ({"type": "integer"}, {"op": "is_at_most", "value": 500}),
        ({"type": "integer"}, [{"op": "is_at_least", "value": 5}, {"op": "is_at_most", "value": 500}]),
        ({"type": "date"}, 5),
        ({"anyOf": [{"type": "integer"}, {"type": "array"}]}, "three"),
        ({}, 5),
    ],
)
def test_values_and_conditions_that_fit_are_accepted(schema: Any, value: Any) -> None:
    assert parameter_problem({"a": value}, {"properties": {"a": schema}}) is None


def test_reference_with_an_argument_of_another_type_is_named() -> None:
    tool = {"name": "order", "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}}}
    row = {
        "id": "s",
        "ticket": {},
        "policy": "",
        "tools": [tool],
        "history": [{"role": "customer", "content": "Three, please."}],
        "references": [{"action": "call_tool", "name": "order", "parameters": {"n": "three"}}],
    }
    with pytest.raises(DataError) as refused:
        from_json(row, where="t.jsonl:1")
    place = "t.jsonl:1: references[0].parameters.n: 'three'"
    assert str(refused.value) == f"{place}: must be a whole number, as the schema says (tool order)"
