"""Tool schemas: parsing of both common formats, and validation of call parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_LONGEST_ENUM = 8
_TYPES: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "string": ("a text", (str,)), "integer": ("a whole number", (int, float)), "number": ("a number", (int, float)),
    "boolean": ("true or false", (bool,)), "array": ("a list", (list, tuple)), "object": ("an object", (dict,)),
    "null": ("null", (type(None),)),
}  # fmt: skip
"""JSON type -> (its values in words, their Python types)."""
_SHOWN_ITEMS = frozenset({"$ref", "properties", "enum", "anyOf", "oneOf", "allOf"})
"""Keys of the items of an array that are shown. Items of a plain type are not."""


def tool_spec(tool: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return (name, JSON schema of the parameters or {}) of a bare or a {"type": "function", ...} tool.

    The schema `true` of a parameter, which accepts every value, becomes {}.
    """
    inner = tool.get("function", tool)
    if not isinstance(inner, Mapping):
        return None, {}
    schema = {} if inner.get("parameters") is None else inner["parameters"]
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if isinstance(properties, Mapping) and any(spec is True for spec in properties.values()):
        schema = {**schema, "properties": {name: {} if spec is True else spec for name, spec in properties.items()}}
    return inner.get("name"), schema


def function_schemas(tools: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the tools as functions of an OpenAI request, complete, as a server passes them to the chat template.

    A tool without a description has null there, as vLLM fills it in.

    >>> function_schemas([{"name": "f", "parameters": {"type": "object"}}])
    [{'type': 'function', 'function': {'name': 'f', 'description': None, 'parameters': {'type': 'object'}}}]
    """
    functions = (tool.get("function", tool) for tool in tools)
    return [
        {"type": "function", "function": {key: inner.get(key) for key in ("name", "description", "parameters")}}
        for inner in functions
    ]


def parameter_problem(parameters: Mapping[str, Any], schema: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return (parameter, correction) for the first fault of a call, or None.

    Checks unknown names, missing required ones, values outside an `enum` of plain values, and values of another `type`.
    `additionalProperties` (true, or the schema of their values) and an object without `properties` allow other names.
    A value {"op", "value"} states a condition ("at most 500") and lists state several; their plain values are not
    checked.
    """
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties", schema.get("type") == "object" and "properties" not in schema)
    for name, value in parameters.items():
        if name not in properties and not (others is True or isinstance(others, Mapping)):
            return name, f"unknown parameter; the schema has {sorted(properties)}"
        spec = properties.get(name, others)
        allowed = spec.get("enum") if isinstance(spec, Mapping) else None
        if allowed and not isinstance(value, dict | list) and value not in allowed:
            return name, f"not among the allowed values {allowed}"
        types = _plain_types(spec)
        if types and not _has_type(value, types):
            return name, f"must be {' or '.join(_TYPES[kind][0] for kind in types)}, as the schema says"
    for name in schema.get("required", []):
        if name not in parameters:
            return name, "required parameter is missing"
    return None


def _plain_types(spec: Any) -> list[str]:
    """Return the `type` of a parameter, one or a list of JSON's types, as a list; [] for any other schema."""
    types = spec.get("type") if isinstance(spec, Mapping) else None
    types = types if isinstance(types, list) else [types]
    return types if all(isinstance(kind, str) and kind in _TYPES for kind in types) else []


def _has_type(value: Any, types: Sequence[str]) -> bool:
    """Return True for a value of one of the JSON types, a condition, and a list of conditions.

    >>> [_has_type(value, ["integer"]) for value in (3, 3.0, 3.5, "three", True, {"op": "is_at_most", "value": 3})]
    [True, True, False, False, False, True]
    """
    several = value if isinstance(value, list) else [value]
    if several and all(isinstance(one, dict) and "op" in one for one in several):
        return True
    if isinstance(value, bool):
        return "boolean" in types
    if isinstance(value, float) and not value.is_integer():
        return "number" in types
    return any(isinstance(value, _TYPES[kind][1]) for kind in types)


def public_values(tools: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the values listed in the schemas (`enum`), which are known to every user of the tool and therefore not
    private.

    >>> sorted(public_values([{"name": "f", "parameters": {"properties": {"doctor": {"enum": ["Alexis", "Morgan"]}}}}]))
    ['Alexis', 'Morgan']
    """
    found: set[str] = set()
    for tool in tools:
        properties = tool_spec(tool)[1].get("properties", {})
        for spec in properties.values() if isinstance(properties, Mapping) else ():
            for one in (spec, *(spec.get("anyOf") or ())) if isinstance(spec, Mapping) else ():
                found.update(str(value) for value in one.get("enum") or ())
    return frozenset(found)


def compact(tool: Mapping[str, Any]) -> str:
    """Return one line for the prompt. `?` marks an optional parameter, text has no type, and a long enum is shortened.

    >>> compact({"name": "f", "parameters": {"properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "integer"},
    ...                                      "c": {"type": "string"}}, "required": ["a", "c"]}})
    'f(a: x|y, b?: integer, c)'
    """
    name, schema = tool_spec(tool)
    types: dict[str, Any] = {}
    for key in ("definitions", "$defs"):
        types |= schema[key] if isinstance(schema.get(key), Mapping) else {}
    return f"{name}({_fields(schema, types)})"


def _fields(schema: Mapping[str, Any], types: Mapping[str, Any]) -> str:
    fields, required = schema.get("properties"), schema.get("required")
    fields, required = fields if isinstance(fields, Mapping) else {}, required if isinstance(required, list) else []
    return ", ".join(f"{name}{'' if name in required else '?'}{_kind(spec, types)}" for name, spec in fields.items())


def _kind(spec: Any, types: Mapping[str, Any]) -> str:
    """Return ": type" or ": a|b|c". Of alternatives use the first that is not null, the plain one.

    `types`: the schemas that a `$ref` names. An object is shown with its fields.

    >>> types = {"Colour": {"enum": ["red", "blue"]}, "Box": {"properties": {"colour": {"$ref": "#/$defs/Colour"}}}}
    >>> _kind({"$ref": "#/$defs/Box"}, types)
    ': {colour?: red|blue}'
    >>> _kind({"anyOf": [{"type": "null"}, {"type": "array", "items": {"properties": {"n": {"type": "integer"}}}}]}, {})
    ': array of {n?: integer}'
    """
    if not isinstance(spec, Mapping):
        return ": any"
    alternatives = spec.get("anyOf") or spec.get("oneOf") or spec.get("allOf")
    if alternatives and ("allOf" not in spec or len(alternatives) == 1):
        plain = (each for each in alternatives if not isinstance(each, Mapping) or each.get("type") != "null")
        return _kind(next(plain, {"type": "null"}), types)
    name = str(spec.get("$ref", "")).removeprefix("#/$defs/").removeprefix("#/definitions/")
    if name in types:
        others = {key: value for key, value in types.items() if key != name}  # a type may contain itself
        return _kind(types[name], others)
    if fields := _fields(spec, types):
        return f": {{{fields}}}"
    values = spec.get("enum") or ([spec["const"]] if "const" in spec else [])
    if values:
        values = [str(value) for value in values]
        if len(values) > _LONGEST_ENUM:
            values = [*values[:2], "..", values[-1]]
        return f": {'|'.join(values)}"
    kind, items = spec.get("type", "any"), spec.get("items")
    if isinstance(kind, list):
        kind = next((each for each in kind if each != "null"), "null")
    if kind == "array" and isinstance(items, Mapping) and items.keys() & _SHOWN_ITEMS:
        return f": array of {_kind(items, types).removeprefix(': ') or 'string'}"
    return "" if kind == "string" else f": {kind}"
