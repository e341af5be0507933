"""Calls are checked against the schema of their tool."""

from __future__ import annotations

from typing import Any

import pytest

from hamr.data.importers.widen import widened_tool
from hamr.data.samples import check_tool, from_json
from hamr.data.tools import compact, parameter_problem
from hamr.errors import DataError
from hamr.rollout.chat_completions import ChatRequest


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


PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "born": {}}, "required": ["name"]}


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        (PERSON, ": {name, born?: any}"),
        ({"type": "array", "items": PERSON}, ": array of {name, born?: any}"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, ": array of a|b"),
        ({"type": "array", "items": {"type": "string"}}, ": array"),
        ({"$ref": "#/definitions/Person"}, ": {name, born?: any}"),
        ({"allOf": [{"$ref": "#/definitions/Person"}], "description": "who"}, ": {name, born?: any}"),
        ({"oneOf": [{"type": "null"}, {"type": "integer"}]}, ": integer"),
        ({"anyOf": [{"type": "null"}, PERSON]}, ": {name, born?: any}"),
        ({"type": ["null", "integer"]}, ": integer"),
        ({"type": "object", "properties": [], "required": True}, ": object"),
    ],
)
def test_fields_of_nested_objects_are_shown(spec: Any, shown: str) -> None:
    schema = {"type": "object", "properties": {"p": spec}, "required": ["p"], "definitions": {"Person": PERSON}}
    assert compact({"name": "f", "parameters": schema}) == f"f(p{shown})"


@pytest.mark.parametrize(
    ("schema", "shown", "problem"),
    [
        ({"type": "object"}, "f()", None),
        ({"type": "object", "properties": {}}, "f()", "unknown parameter; the schema has []"),
        ({"type": "object", "additionalProperties": False}, "f()", "unknown parameter; the schema has []"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "f()", None),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "f()", "must be a text, as the schema says"),
        ({"type": "object", "properties": {"k": True}}, "f(k?: any)", None),
        (None, "f()", "unknown parameter; the schema has []"),
    ],
)
def test_valid_schemas_are_accepted(schema: Any, shown: str, problem: str | None) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    name, parameters = check_tool(tool, "tools[0]")
    assert (name, compact(tool)) == ("f", shown)
    assert parameter_problem({"k": 1}, parameters) == (problem and ("k", problem))
    assert ChatRequest.model_validate({"messages": [{"role": "user"}], "tools": [tool]}).shown_tools


def test_parameter_that_accepts_every_value_stays_so_when_widened() -> None:
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"k": True}}}
    assert widened_tool(tool, [{"k": 1}])["parameters"]["properties"] == {"k": {}}
