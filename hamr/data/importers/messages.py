"""The `messages` format of Hugging Face datasets and chat APIs.

    {"id"?, "messages": [{"role": "system" | "user" | "assistant" | "tool", "content": text or null,
                          "tool_calls"?: [{"id"?, "function": {"name", "arguments": object or JSON text}}],
                          "tool_call_id"?, "name"?}, ...], "tools"?: [...]}

System messages are the policy. An assistant message with text and calls becomes a reply and then its calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hamr.data.importers.widen import Calls, calls_in, tools_from_calls
from hamr.data.samples import read_rows
from hamr.data.tools import tool_spec
from hamr.data.trajectories import Trajectory, trajectory_from_json
from hamr.errors import DataError

_ROLES = {"user": "customer", "assistant": "agent", "tool": "tool", "function": "tool"}


def import_messages(*, input: Path) -> list[Trajectory]:
    """Return one trajectory per line, in the order of the file. A line without an id is named by its number.

    Tools that a line does not list are derived from the calls of the file. DataError has the place `file:line:
    messages[i]`.
    """
    rows = [(number, f"{input}:{number}", row) for number, row in read_rows(input)]
    made = [_convert(row, number, where) for number, where, row in rows]
    calls: Calls = {}
    for row in made:
        calls_in(row["turns"], calls)
    found: dict[str, Trajectory] = {}
    for (_, where, _), row in zip(rows, made, strict=True):
        trajectory = trajectory_from_json({**row, "tools": _tools(row, calls)}, where=where)
        if trajectory.id in found:
            raise DataError(f"{where}: id", trajectory.id, "already used on an earlier line; make it unique")
        found[trajectory.id] = trajectory
    return list(found.values())


def _convert(row: Any, number: int, where: str) -> dict[str, Any]:
    if not isinstance(row, dict) or not isinstance(row.get("messages"), list):
        raise DataError(f"{where}: messages", row, "must be an object with a list of messages")
    names: dict[str, str] = {}
    policy: list[str] = []
    turns: list[dict[str, Any]] = []
    for i, message in enumerate(row["messages"]):
        place = f"{where}: messages[{i}]"
        if not isinstance(message, dict):
            raise DataError(place, message, "must be an object with role and content")
        role, text = message.get("role"), _text(message.get("content"), place)
        if role in ("system", "developer"):
            policy.append(text)
        elif role not in _ROLES:
            raise DataError(f"{place}.role", role, f"unknown role; use system, {', '.join(_ROLES)}")
        elif _ROLES[role] == "tool":
            name = message.get("name") or names.get(str(message.get("tool_call_id")))
            turns.append({"role": "tool", **({"name": name} if name else {}), "content": text})
        else:
            turns.extend([{"role": _ROLES[role], "content": text}] if text.strip() else [])
            turns.extend(_calls(message, place, names))
    identity = str(row.get("id") or number)
    meta = {"dataset": "messages", "dialogue": identity}
    return {
        "id": identity, "ticket": {}, "policy": "\n".join(policy), "tools": row.get("tools") or [], "turns": turns,
        "meta": meta,
    }  # fmt: skip


def _text(content: Any, place: str) -> str:
    """Return the text of a message. For a list of parts, join their texts."""
    if isinstance(content, list):
        content = "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    if content is not None and not isinstance(content, str):
        raise DataError(f"{place}.content", content, "must be text, a list of parts, or null")
    return content or ""


def _calls(message: Mapping[str, Any], place: str, names: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the calls of an assistant message. `names` receives the tool of each call id."""
    for j, call in enumerate(message.get("tool_calls") or ()):
        inner = call.get("function", call) if isinstance(call, dict) else None
        where = f"{place}.tool_calls[{j}]"
        if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
            raise DataError(where, call, "must have a function with a name")
        arguments = inner.get("arguments") or {}
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{where}.arguments", arguments, f"are not JSON ({error})") from error
        if not isinstance(arguments, dict):
            raise DataError(f"{where}.arguments", arguments, "must be an object")
        names[str(call.get("id"))] = inner["name"]
        yield {"role": "agent", "action": "call_tool", "name": inner["name"], "parameters": arguments}


def _tools(row: Mapping[str, Any], calls: Calls) -> list[Any]:
    listed = {tool_spec(tool)[0] for tool in row["tools"] if isinstance(tool, dict)}
    used = {turn["name"] for turn in row["turns"] if turn.get("action") == "call_tool"}
    return [*row["tools"], *tools_from_calls(calls, used - listed)]
