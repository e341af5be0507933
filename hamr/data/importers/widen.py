"""Widen the schema of a tool so that it accepts the calls of its corpus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hamr.data.tools import tool_spec

_JSON_TYPES: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


def widened_tool(tool: Mapping[str, Any], calls: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the tool with every parameter of `calls` allowed, and none required that a call lacks.

    A parameter whose values all fit keeps its schema. Otherwise it becomes `anyOf` the original and the observed
    values: a condition {"op", "value"}, a list of choices, or a plain value of another type or outside the enum.
    """
    schema = tool_spec(tool)[1] or {"type": "object"}
    properties = dict(schema.get("properties", {}))
    for name in {name: None for call in calls for name in call}:
        values = [call[name] for call in calls if name in call]
        properties[name] = _widen(properties.get(name), values)
    required = [name for name in schema.get("required", []) if all(name in call for call in calls)]
    return {**tool, "parameters": {**schema, "properties": properties, "required": required}}


Calls = dict[str, list[Mapping[str, Any]]]
"""Parameters of the calls of a file, by tool name."""


def calls_in(dialogues: Iterable[Iterable[Any]]) -> Calls:
    """Return the calls in the turns of the dialogues (rows of a history), without malformed ones."""
    calls: Calls = {}
    for turn in (turn for turns in dialogues for turn in turns):
        if isinstance(turn, dict) and isinstance(turn.get("parameters"), dict):
            calls.setdefault(str(turn.get("name")), []).append(turn["parameters"])
    return calls


def tools_from_calls(calls: Calls, names: Iterable[str]) -> list[dict[str, Any]]:
    """Return tools derived from their calls, for tools without a description, sorted by name."""
    return [slot_tool(name, (), calls) for name in sorted(names)]


def derived_tools(calls: Calls) -> dict[str, dict[str, Any]]:
    """Return the tools of all calls by name, in its order. Made once per file, because it looks at every call."""
    return {tool["name"]: tool for tool in tools_from_calls(calls, calls)}


def add_called_tools(tools: Iterable[Any], turns: Iterable[Any], derived: Mapping[str, dict[str, Any]]) -> list[Any]:
    """Return the tools of a dialogue, and those that its turns call without a description, which are in `derived`."""
    listed = list(tools)
    known = {name for tool in listed if isinstance(tool, dict) and isinstance(name := tool_spec(tool)[0], str)}
    return [*listed, *(derived[name] for name in sorted(calls_in([turns]).keys() - known))]


def slot_tool(name: str, slots: Iterable[str], calls: Calls) -> dict[str, Any]:
    """Return a tool without a description, whose slots are optional texts, widened to accept its calls."""
    properties = {slot: {"type": "string"} for slot in slots}
    schema = {"type": "object", "properties": properties, "required": []}
    return widened_tool({"name": name, "description": "", "parameters": schema}, calls.get(name, []))


def _widen(spec: Mapping[str, Any] | None, values: Sequence[Any]) -> dict[str, Any]:
    unfit = [value for value in values if spec is None or not _fits(value, spec)]
    if not unfit:
        return dict(spec or {})
    alternatives = [] if spec is None else [{key: value for key, value in spec.items() if key != "description"}]
    operators = sorted({str(value["op"]) for value in unfit if _is_condition(value)})
    if operators:
        condition = {"op": {"type": "string", "enum": operators}, "value": {}}
        alternatives.append({"type": "object", "properties": condition, "required": ["op", "value"]})
    for kind in sorted({_JSON_TYPES[type(value)] for value in unfit if not _is_condition(value)}):
        alternatives.append({"type": kind})
    described = {"description": spec["description"]} if spec and "description" in spec else {}
    return {**described, "anyOf": alternatives}


def _fits(value: Any, spec: Mapping[str, Any]) -> bool:
    if "enum" in spec and value not in spec["enum"]:
        return False
    kind = _JSON_TYPES[type(value)]
    return "type" not in spec or kind == spec["type"] or (kind, spec["type"]) == ("integer", "number")


def _is_condition(value: Any) -> bool:
    return isinstance(value, dict) and "op" in value and "value" in value
