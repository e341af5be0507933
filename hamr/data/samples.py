"""The sample file: one decision point a line, as JSON. Reading names the line and the field of every fault.

Shape of a line (`privileged`, `meta` and a reference's `source` may be absent):

    {"id": "s1", "ticket": {"Penalty": 0}, "policy": "Help.", "tools": [{"name", "description", "parameters"}],
     "history": [{"role": "customer", "content": "Hi"}, {"role": "agent", "action": "reply", "content": "Hello"},
                 {"role": "agent", "action": "call_tool", "name": "t", "parameters": {}},
                 {"role": "tool", "name": "t", "content": "done"}],
     "references": [{"action": "reply", "content": "Sure", "source": "logged"},
                    {"action": "call_tool", "name": "t", "parameters": {}, "source": "logged"}],
     "privileged": {"rubric": [{"title": "Asks why", "description": "Asks for the reason.", "weight": 5}]}, "meta": {}}

An agent's turn without `action` is a reply. A tool may also come in the wrapped form
{"type": "function", "function": {"name", "description", "parameters"}}. `privileged` holds what judges may know and
the policy may not; of its keys only `rubric`, for the rubric reward, has a form that is checked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from hamr.data.actions import MAX_DEPTH, finite_number, is_deeper, render_action
from hamr.data.tools import parameter_problem, tool_spec
from hamr.errors import DataError, did_you_mean
from hamr.files import refuse_constant, unique_keys
from hamr.types import Action, Reference, Reply, ServiceSample, ToolCall, Turn

T = TypeVar("T")
MAX_NESTING = MAX_DEPTH + 16
"""Maximum depth of lists and objects in a field: a tool call of MAX_DEPTH inside a turn."""
_FIELDS = ("id", "ticket", "policy", "tools", "history", "references", "privileged", "meta", "documents")
_TYPES: dict[type, str] = {str: "text", dict: "an object", list: "a list"}


def act_of(sample: ServiceSample) -> str:
    """Return the act that a generated sample names. For others, return the tool of the first reference, or `reply`."""
    if "act" in sample.meta:
        return str(sample.meta["act"])
    action = sample.references[0].action
    return action.name if isinstance(action, ToolCall) else "reply"


def read_samples(path: str | Path) -> list[ServiceSample]:
    """Read all samples of the file, in order. Skip blank lines. Raise DataError at the first fault."""
    return [sample for _, sample in read_unique(path, lambda row, where: from_json(row, where=where), lambda s: s.id)]


def unique_samples(rows: Iterable[tuple[str, Any]]) -> list[ServiceSample]:
    """Return the samples of (place, object), in order. Raise DataError at the first fault."""
    samples: dict[str, ServiceSample] = {}
    for where, row in rows:
        sample = from_json(row, where=where)
        if samples.setdefault(sample.id, sample) is not sample:
            raise DataError(f"{where}: id", sample.id, "already used on an earlier line; make it unique")
    return list(samples.values())


def read_unique(path: str | Path, parse: Callable[[Any, str], T], id_of: Callable[[T], str]) -> Iterator[tuple[int, T]]:
    """Yield (line number, parsed object) of every line. `parse` gets the object and its `file:line`.

    Raises DataError for an id that an earlier line has.
    """
    seen: dict[str, int] = {}
    for number, row in read_rows(path):
        where = f"{path}:{number}"
        parsed = parse(row, where)
        if (line := seen.setdefault(id_of(parsed), number)) != number:
            raise DataError(f"{where}: id", id_of(parsed), f"already used on line {line}; make it unique")
        yield number, parsed


def read_rows(path: str | Path) -> list[tuple[int, Any]]:
    """Return (line number, parsed JSON) of every line that is not blank.

    Raises DataError for a file that is missing, unreadable or empty, for bytes that are not UTF-8 and for invalid JSON
    (including NaN and Infinity).
    """
    return [(number, row) for number, _, row in stream_rows(path)]


def stream_rows(path: str | Path, skip: Callable[[DataError], None] | None = None) -> Iterator[tuple[int, bytes, Any]]:
    """Yield the rows of `read_rows` one by one: (line number, bytes since the last row, parsed JSON).

    The bytes are those of the line and of the blank lines before it. Raises as `read_rows`, when it reaches the fault.
    With `skip`, an invalid line is passed to it and treated as blank.
    """
    try:
        with Path(path).open("rb") as file:
            yield from _stream_rows(path, file, skip)
    except OSError as error:
        raise DataError(
            str(path), str(path), f"{(error.strerror or 'cannot be read').lower()}; give a JSONL file"
        ) from error


def _stream_rows(
    path: str | Path, file: Iterable[bytes], skip: Callable[[DataError], None] | None
) -> Iterator[tuple[int, bytes, Any]]:
    since, any_row = b"", False
    for number, raw in enumerate(file, start=1):
        since += raw
        where = f"{path}:{number}: line"
        try:
            line = _decode(raw, where, "utf-8-sig" if number == 1 else "utf-8")
            row = parse_line(line, where) if line else None
        except DataError as error:
            if skip is None:
                raise
            skip(error)
            any_row = True
            continue
        if line:
            yield number, since, row
            since, any_row = b"", True
    if not any_row:
        raise DataError(f"{path}:1: line", "", "the file is empty; write one JSON object per line")


def _decode(raw: bytes, where: str, encoding: str) -> str:
    try:
        return raw.decode(encoding).strip()
    except UnicodeDecodeError as error:
        raise DataError(where, raw[:40], f"byte {error.start + 1} is not UTF-8; save the file as UTF-8") from error


def parse_line(line: str, where: str, fault: str = "bad JSON ({}); write one JSON object per line") -> Any:
    """Parse the JSON value of a line.

    Raises DataError at `where` with `fault`, which gets the error of the parser, for invalid JSON, deep nesting, and
    what could not be written again: NaN, Infinity, numbers out of range, lone surrogates, a key given twice.
    """
    try:
        value = json.loads(
            line, parse_constant=refuse_constant, parse_float=finite_number, object_pairs_hook=unique_keys
        )
        if "\\ud" in line.lower():
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError) as error:
        raise DataError(where, line, fault.format(error)) from error


def write_samples(path: str | Path, samples: Iterable[ServiceSample]) -> None:
    """Write the file atomically: readers never see a partial file."""
    write_rows(path, (to_json(sample) for sample in samples))


def write_rows(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write any objects as JSONL, atomically as `write_samples`."""
    target = Path(path)
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    except OSError as error:
        raise DataError(str(path), str(path), f"cannot be written: {error.strerror}") from error
    finally:
        aside.unlink(missing_ok=True)


# --- one sample --------------------------------------------------------------------------------


def to_json(sample: ServiceSample) -> dict[str, Any]:
    """Return the line object of a sample. Inverse of `from_json`."""
    return {
        "id": sample.id,
        "ticket": dict(sample.ticket),
        "policy": sample.policy,
        "tools": [dict(tool) for tool in sample.tools],
        "history": [turn_json(turn) for turn in sample.history],
        "references": [{**action_json(r.action), "source": r.source} for r in sample.references],
        "privileged": dict(sample.privileged),
        "meta": dict(sample.meta),
        **({"documents": list(sample.documents)} if sample.documents else {}),
    }


def action_json(action: Action) -> dict[str, Any]:
    if isinstance(action, Reply):
        return {"action": "reply", "content": action.content}
    return {"action": "call_tool", "name": action.name, "parameters": dict(action.parameters)}


def turn_json(turn: Turn) -> dict[str, Any]:
    if turn.role == "agent":
        return {"role": "agent", **action_json(turn.tool_call or Reply(content=turn.content))}
    named = {"name": turn.name} if turn.name is not None else {}
    return {"role": turn.role, **named, "content": turn.content}


def from_json(row: Any, *, where: str = "sample", own: Collection[str] = ()) -> ServiceSample:
    """Return the sample of a line object. DataError has the place `<where>: <field>`.

    A line object that could not be written again as JSON is refused: NaN, lone surrogates, other types, and values
    nested more than MAX_NESTING deep, which Python cannot send between processes.
    `own`: fields that the caller reads. Any other field than these and the sample's is refused.
    """
    if not isinstance(row, dict):
        raise DataError(f"{where}: line", row, "must be a JSON object")
    for field, value in row.items():
        try:
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            shown = "..." if isinstance(error, RecursionError) else value
            raise DataError(f"{where}: {field}", shown, f"cannot be written as JSON ({error}); correct it") from error
        if is_deeper(value, MAX_NESTING):
            raise DataError(f"{where}: {field}", "...", f"is nested more than {MAX_NESTING} deep; flatten it")
    identity = _get(row, "id", str, where)
    if not identity:
        raise DataError(f"{where}: id", identity, "must not be empty")
    tools = tuple(_get(row, "tools", list, where))
    schemas = _schemas(tools, where)
    history = _get(row, "history", list, where)
    references = _get(row, "references", list, where)
    if not references:
        raise DataError(f"{where}: references", references, "is empty; give at least one acceptable action")
    sample = ServiceSample(
        id=identity,
        ticket=_get(row, "ticket", dict, where),
        policy=_get(row, "policy", str, where),
        tools=tools,
        history=tuple(_turn(turn, f"{where}: history[{i}]", schemas) for i, turn in enumerate(history)),
        references=tuple(parse_reference(r, f"{where}: references[{i}]", schemas) for i, r in enumerate(references)),
        privileged=_parse_privileged(row, where),
        meta=_get(row, "meta", dict, where, default={}),
        documents=_documents(row, where),
    )
    if unknown := [field for field in row if field not in _FIELDS and field not in own]:
        remedy = f"unknown field; {did_you_mean(unknown[0], (*_FIELDS, *own))}remove it, or move it into meta"
        raise DataError(f"{where}: {unknown[0]}", row[unknown[0]], remedy)
    return sample


def _documents(row: Mapping[str, Any], where: str) -> tuple[str, ...]:
    texts = _get(row, "documents", list, where, default=[])
    for i, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{where}: documents[{i}]", text, "must be a text; remove an empty one")
    return tuple(texts)


def history_from_json(rows: Any, *, where: str) -> tuple[Turn, ...]:
    """Parse a history without a sample. Its calls may name any tool. Raise DataError."""
    if not isinstance(rows, list):
        raise DataError(f"{where}: history", rows, "must be a list")
    return tuple(_turn(row, f"{where}: history[{i}]", None) for i, row in enumerate(rows))


def _get(row: Mapping[str, Any], field: str, kind: type, where: str, *, default: Any = None, dot: str = ": ") -> Any:
    """Return the value of the field after a type check. `default` None: the field is required."""
    place = f"{where}{dot}{field}"
    if field not in row:
        if default is not None:
            return default
        raise DataError(place, sorted(row), f"missing field; add {field!r}")
    value = row[field]
    if not isinstance(value, kind):
        raise DataError(place, value, f"must be {_TYPES[kind]}")
    return value


def _parse_privileged(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    privileged = _get(row, "privileged", dict, where, default={})
    place = f"{where}: privileged.rubric"
    if "rubric" not in privileged:
        return privileged
    for i, item in enumerate(_get(privileged, "rubric", list, f"{where}: privileged", dot=".")):
        if not isinstance(item, dict):
            raise DataError(f"{place}[{i}]", item, "must be an object with title, description and weight")
        for field in ("title", "description"):
            _get(item, field, str, f"{place}[{i}]", dot=".")
        weight = item.get("weight")
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise DataError(f"{place}[{i}].weight", weight, "must be a number: 1 to 5, or -1 or -2 for an error")
    return privileged


def _schemas(tools: tuple[Any, ...], where: str) -> dict[str, Mapping[str, Any]]:
    """Return the JSON schema of the parameters by tool name."""
    schemas: dict[str, Mapping[str, Any]] = {}
    for i, tool in enumerate(tools):
        name, schema = check_tool(tool, f"{where}: tools[{i}]")
        if name in schemas:
            raise DataError(f"{where}: tools[{i}].name", name, "two tools have this name; rename one")
        schemas[name] = schema
    return schemas


def check_tool(tool: Any, place: str) -> tuple[str, Mapping[str, Any]]:
    """Return (name, JSON schema of the parameters) of a tool. Raise DataError for an invalid one."""
    if not isinstance(tool, dict):
        raise DataError(place, tool, "must be an object with name, description and parameters")
    name, schema = tool_spec(tool)
    if not isinstance(name, str) or not name:
        raise DataError(f"{place}.name", name, "must be a non-empty text")
    if not isinstance(schema, dict) or not isinstance(schema.get("properties", {}), dict):
        raise DataError(f"{place}.parameters", schema, "must be a JSON schema with an object of properties")
    for parameter, described in schema.get("properties", {}).items():
        field = f"{place}.parameters.properties.{parameter}"
        if not isinstance(described, dict):
            raise DataError(field, described, 'must be an object: {"type": ...}')
        several = described.get("anyOf") or []
        if not isinstance(several, list) or not all(isinstance(each, dict) for each in several):
            raise DataError(f"{field}.anyOf", several, "must be a list of objects")
        for each in (described, *several):
            if not isinstance(each.get("enum") or [], list):
                raise DataError(f"{field}.enum", each["enum"], "must be a list of the allowed values")
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(each, str) for each in required):
        raise DataError(f"{place}.parameters.required", required, "must be a list of names")
    return name, schema


def _turn(row: Any, where: str, schemas: Mapping[str, Mapping[str, Any]] | None) -> Turn:
    if not isinstance(row, dict):
        raise DataError(where, row, "must be an object with role and content")
    role = _get(row, "role", str, where, dot=".")
    if role not in ("customer", "agent", "tool"):
        raise DataError(f"{where}.role", role, "unknown role; use customer, agent or tool")
    if role == "agent":
        action = _action({"action": "reply", **row}, where, schemas)
        if isinstance(action, ToolCall):
            return Turn(role="agent", tool_call=action)
        return Turn(role="agent", content=action.content)
    content = _get(row, "content", str, where, dot=".")
    name = _get(row, "name", str, where, dot=".") if "name" in row else None
    return Turn(role=role, content=content, name=name)


def parse_reference(row: Any, where: str, schemas: Mapping[str, Mapping[str, Any]]) -> Reference:
    """Parse a reference. `schemas`: the parameters of the sample's tools. Raise DataError."""
    if not isinstance(row, dict):
        raise DataError(where, row, "must be an object with an action")
    action = _action(row, where, schemas)
    if isinstance(action, ToolCall):
        if problem := parameter_problem(action.parameters, schemas[action.name]):
            name, remedy = problem
            raise DataError(f"{where}.parameters.{name}", action.parameters.get(name), f"{remedy} (tool {action.name})")
    elif not action.content.strip():
        raise DataError(f"{where}.content", action.content, "an empty reply is not a reference; add text or remove it")
    else:
        try:
            render_action(action)
        except DataError as error:  # reject texts that no policy can generate before a run, not during it
            raise DataError(f"{where}.content", error.value, error.remedy) from error
    return Reference(action=action, source=_get(row, "source", str, where, default="logged", dot="."))


def _action(row: Mapping[str, Any], where: str, schemas: Mapping[str, Mapping[str, Any]] | None) -> Action:
    """Parse an action. `schemas` None: any tool is allowed."""
    kind = _get(row, "action", str, where, dot=".")
    if kind == "reply":
        return Reply(content=_get(row, "content", str, where, dot="."))
    if kind != "call_tool":
        raise DataError(f"{where}.action", kind, "unknown action; use reply or call_tool")
    name = _get(row, "name", str, where, dot=".")
    if schemas is not None and name not in schemas:
        raise DataError(f"{where}.name", name, f"no such tool; the sample's tools are {sorted(schemas)}")
    return ToolCall(name=name, parameters=_get(row, "parameters", dict, where, dot="."))
