"""Chats in the forms of Hugging Face data sets, chat APIs and other trainers. The form of each line is detected.

    messages  {"messages": [{"role": "system" | "user" | "assistant" | "tool", "content": text or null,
                             "tool_calls"?: [{"id"?, "function": {"name", "arguments": object or JSON text}}],
                             "function_call"?: {"name", "arguments"}, "tool_call_id"?, "name"?}, ...]}
              or with a list of parts as content: {"type": "text", "text"}, and Anthropic's
              {"type": "tool_use", "id", "name", "input"} and {"type": "tool_result", "tool_use_id", "content"}
    ShareGPT  {"conversations": [{"from": "human" | "gpt" | "system" | "function_call" | "observation", "value"}, ...]}
    TRL       {"prompt": text or messages, "completion": text or messages}
    verl      {"prompt": messages, "reward_model": {"ground_truth": text}}

All may have `id`, `tools`, or OpenAI's older `functions` (a list or JSON text), and `system`, a text. The system
messages before the dialogue are the policy; a later one is a fault, because it would be the policy of earlier decisions
too. An assistant message with text and calls becomes a reply and then its calls; with `"weight": 0` its turns are only
history. Results have the order of their calls. The completion, or the ground truth, is the last turn of the agent.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from hamr.data.columns import check_column, group_meta
from hamr.data.samples import parse_line
from hamr.data.tables import TicketFault, read_table
from hamr.errors import DataError

_ROLES = {"user": "customer", "assistant": "agent", "tool": "tool", "function": "tool"}
_SHAREGPT = {
    "human": "user", "user": "user", "gpt": "assistant", "chatgpt": "assistant", "assistant": "assistant",
    "system": "system", "observation": "tool", "tool": "tool", "function_call": "function_call",
}  # fmt: skip
_SPLITS = {"train": "train", "validation": "validation", "valid": "validation", "dev": "validation", "test": "test"}
_SPLIT = re.compile(rf"(?<![a-z])({'|'.join(_SPLITS)})(?![a-z])")
TABLES = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow")
"""Endings of the files of a data set."""
_OWN_PARTS = ("tool_use", "tool_result", "thinking", "redacted_thinking")
"""Types of parts of Anthropic's messages that are no part of the text."""
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")


def read_chat_rows(
    input: Path, group: str | None, faults: list[TicketFault]
) -> tuple[list[tuple[int, str, dict[str, Any]]], Counter[str]]:
    """Return (line, `file:line`, trajectory row) per line of a file or of the files in a folder, in their order, and
    the counts of `chat_row`.

    A folder is a data set of `datasets`, saved or downloaded; a file or folder named after a split keeps its rows in
    that split. A line without an id is named by its number, in an array by its position. Faulty lines join `faults`.
    """
    made: list[tuple[int, str, dict[str, Any]]] = []
    dropped: Counter[str] = Counter()
    rows: list[Mapping[str, Any]] = []
    files = _files(input)
    for path in files:
        names = (path.stem, *([path.parent.name] if path.parent != input else ()))
        split = next((_SPLITS[m[1]] for part in names if (m := _SPLIT.search(part))), None)
        table = read_table(path, only_utf8=True)
        faults += table.faults
        for position, (number, row) in enumerate(table.rows, start=1):
            where = f"{path}:{number}"
            label = position if path.suffix.lower() == ".json" else number  # an array may be one line
            name = str(label) if len(files) == 1 else f"{path.relative_to(input).with_suffix('')}-{label}"
            columnar = path.suffix.lower() in (".parquet", ".arrow")
            rows.append(row)
            counts: Counter[str] = Counter()
            try:
                converted = chat_row(_without_nulls(row) if columnar else row, name, where, counts)
            except DataError as error:
                faults.append(TicketFault(line=number, message=str(error), row=dict(row)))
                continue
            dropped += counts
            if split and input.is_dir():
                converted["meta"]["split"] = split
            converted["meta"] |= group_meta(row, group)
            made.append((number, where, converted))
    check_column("group", group, rows, input.name)
    if not made and not faults:
        raise DataError("input", str(input), "contains no line; give chats")
    return made, dropped


def _files(source: Path) -> list[Path]:
    """Return the tables of a folder, training data first, or the file itself."""
    if not source.is_dir():
        return [source]
    found = [
        path
        for path in sorted(source.rglob("*"))
        if not any(part.startswith(".") for part in path.relative_to(source).parts)
        and _is_table(path)
        and path.name not in ("dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json")
    ]
    if not found:
        raise DataError("input", str(source), f"contains no {', '.join(TABLES)}; give the folder of a data set")
    return sorted(found, key=lambda path: "train" not in str(path.relative_to(source)))


def _is_table(path: Path) -> bool:
    """Return whether the file is a table. Raises DataError for a compressed one."""
    *_, before, ending = ("", "", *(suffix.lower() for suffix in path.suffixes))
    if ending in _COMPRESSED and before in TABLES:
        raise DataError("input", str(path), "is compressed; decompress it, or remove it from the folder")
    return ending in TABLES


def _without_nulls(value: Any) -> Any:
    """Return the value without keys that are null: columns give every message the keys of all."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


# --- forms -------------------------------------------------------------------------------------


def _messages(row: Mapping[str, Any], where: str) -> tuple[str, str, list[Any]]:
    """Return (form, field of the messages, messages in the form of chat APIs)."""
    if isinstance(row.get("messages"), list):
        return "messages", "messages", row["messages"]
    if isinstance(row.get("conversations"), list):
        turns = [_sharegpt(turn, f"{where}: conversations[{i}]") for i, turn in enumerate(row["conversations"])]
        return "sharegpt", "conversations", turns
    if "prompt" in row and "completion" in row:
        return "trl", "prompt", _as_list(row["prompt"], "user") + _as_list(row["completion"], "assistant")
    if "prompt" in row and isinstance(row.get("reward_model"), dict):
        truth = row["reward_model"].get("ground_truth")
        if not isinstance(truth, str) or not truth.strip():
            raise DataError(f"{where}: reward_model.ground_truth", truth, "must be the right answer as text")
        return "verl", "prompt", _as_list(row["prompt"], "user") + _as_list(truth, "assistant")
    remedy = "must have lists of messages or conversations, prompt and completion, or prompt and reward_model"
    raise DataError(f"{where}: messages", sorted(row), remedy)


def _as_list(value: Any, role: str) -> list[Any]:
    return value if isinstance(value, list) else [{"role": role, "content": value}]


def _sharegpt(turn: Any, place: str) -> dict[str, Any]:
    if not isinstance(turn, dict):
        raise DataError(place, turn, "must be an object with from and value")
    sender, text = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
    if not isinstance(sender, str) or sender not in _SHAREGPT:
        raise DataError(f"{place}.from", sender, f"unknown role; use {', '.join(_SHAREGPT)}")
    if sender != "function_call":
        return {**turn, "role": _SHAREGPT[sender], "content": text}
    called = parse_line(text, f"{place}.value", "the call is not JSON ({})") if isinstance(text, str) else text
    calls = called if isinstance(called, list) else [called]
    return {**turn, "role": "assistant", "content": None, "tool_calls": calls}


def chat_row(row: Mapping[str, Any], unnamed: str, where: str, dropped: Counter[str] | None = None) -> dict[str, Any]:
    """Return the trajectory row of a chat in any of the forms. `unnamed` is its id if it has none.

    `dropped` counts the messages without text or call (`blank`), the parts of messages without text (`parts`), and the
    tool calls before the last turn that have no result (`open`).
    `meta["not_references"]` lists the turns of the agent with weight 0.
    """
    form, field, messages = _messages(row, where)
    dropped = Counter() if dropped is None else dropped
    results = _Results()
    policy = [_text(row["system"], f"{where}: system", dropped)] if row.get("system") else []
    turns: list[dict[str, Any]] = []
    for i, message in ((i, part) for i, whole in enumerate(messages) for part in _split_parts(whole)):
        place = f"{where}: {field}[{i}]"
        if not isinstance(message, dict):
            raise DataError(place, message, "must be an object with role and content")
        content = message.get("content") or message.get("refusal")
        role, text = message.get("role"), _text(content, place, dropped)
        if role in ("system", "developer"):
            if turns and text.strip():
                remedy = "a system message inside the dialogue is not the policy of the turns before it; split the chat"
                raise DataError(place, text, f"{remedy} there, or move it to the start")
            policy.append(text)
        elif not isinstance(role, str) or role not in _ROLES:
            raise DataError(f"{place}.role", role, f"unknown role; use system, {', '.join(_ROLES)}")
        elif _ROLES[role] == "tool":
            results.add(message, text, turns, place)
        else:
            calls = list(_calls(message, place))
            if calls and turns and turns[-1]["role"] != "agent":
                results.latest.clear()
            results.expect(calls)
            spoken = [{"role": _ROLES[role], "content": text}] if text.strip() else []
            dropped["blank"] += not spoken and not calls
            turns += ({**turn, **_weight(message, role, place)} for turn in (*spoken, *calls))
    last = len([*takewhile(lambda turn: turn["role"] == "agent" and "call" in turn, reversed(turns))])
    dropped["open"] += sum(number <= results.calls - last for number in results.open)
    key = "tools" if row.get("tools") else "functions"
    tools = row.get(key) or []
    if isinstance(tools, str):
        tools = parse_line(tools, f"{where}: {key}")
    if not isinstance(tools, list):
        raise DataError(f"{where}: {key}", tools, "must be a list")
    tools = [_openai_tool(tool) for tool in tools]
    identity = unnamed if row.get("id") in (None, "") else str(row["id"])
    meta: dict[str, Any] = {"dataset": form, "dialogue": identity}
    if history_only := [i for i, turn in enumerate(turns) if turn.get("weight") == 0]:
        meta["not_references"] = history_only
    turns = [{key: value for key, value in turn.items() if key not in ("weight", "call")} for turn in turns]
    return {
        "id": identity, "ticket": {}, "policy": "\n".join(policy), "tools": tools, "turns": turns, "meta": meta,
    }  # fmt: skip


def _openai_tool(tool: Any) -> Any:
    """Return a tool in OpenAI's form: Anthropic's has the schema as `input_schema`."""
    if not isinstance(tool, dict) or "input_schema" not in tool:
        return tool
    return {"parameters" if key == "input_schema" else key: value for key, value in tool.items()}


def _split_parts(message: Any) -> Iterator[Any]:
    """Yield a message in OpenAI's form: Anthropic's has calls, results and thoughts as parts of the content."""
    parts = message.get("content") if isinstance(message, dict) else None
    typed = [(part.get("type"), part) for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    if not any(kind in _OWN_PARTS for kind, _ in typed):
        yield message
        return
    for result in (part for kind, part in typed if kind == "tool_result"):
        yield {"role": "tool", "tool_call_id": result.get("tool_use_id"), "content": result.get("content")}
    calls = [{**part, "arguments": part.get("input")} for kind, part in typed if kind == "tool_use"]
    others = [part for kind, part in typed if kind not in _OWN_PARTS]
    if calls or others:
        yield {**message, "content": others, **({"tool_calls": calls} if calls else {})}


class _Results:
    """Attribution of tool results to calls: by id, else by the name of the tool, else in the order of the calls."""

    def __init__(self) -> None:
        self.open: dict[int, tuple[str, str]] = {}
        """(tool, id) by the number of a call without a result."""
        self.latest: list[int] = []
        """Calls that wait for a result without an id: those since the latest turn of somebody else."""
        self.calls = 0

    def expect(self, calls: list[dict[str, Any]]) -> None:
        for call in calls:
            self.calls += 1
            self.latest.append(self.calls)
            self.open[self.calls] = (call["name"], "" if call["call"] is None else str(call["call"]))

    def add(self, message: Mapping[str, Any], text: str, turns: list[dict[str, Any]], place: str) -> None:
        """Add the result to the turns, before the results that follow it in the order of their calls."""
        identity, name = message.get("tool_call_id"), message.get("name")
        identified = identity not in (None, "")
        if identified:
            number = next((n for n, (_, call) in reversed(self.open.items()) if call == str(identity)), 0)
            if not number:
                raise DataError(f"{place}.tool_call_id", identity, "no call before it waits for it; correct the id")
        else:
            number = next((n for n in self.latest if not name or name == self.open[n][0]), 0)
        if number:
            tool, _ = self.open.pop(number)
            name = name or tool
            self.latest = [n for n in self.latest if n != number]
        at = len(turns)
        while at and identified and turns[at - 1]["role"] == "tool" and turns[at - 1]["call"] > number:
            at -= 1
        turns.insert(at, {"role": "tool", **({"name": name} if name else {}), "content": text, "call": number})


def _weight(message: Mapping[str, Any], role: str, place: str) -> dict[str, Any]:
    """Return the weight of an assistant message if it has one. OpenAI's format has 0 (not trained on) and 1."""
    weight = message.get("weight")
    if role != "assistant" or weight is None:
        return {}
    if weight not in (0, 1):
        raise DataError(f"{place}.weight", weight, "must be 0 (never a reference) or 1")
    return {"weight": weight}


def _text(content: Any, place: str, dropped: Counter[str]) -> str:
    """Return the text of a message. For a list of parts, join their texts. Parts without text are counted."""
    if isinstance(content, list):
        found = (part.get("text", part.get("refusal")) for part in content if isinstance(part, dict))
        texts = [text for text in found if isinstance(text, str)]
        others = len(content) - len(texts)
        if others and not "".join(texts).strip():
            raise DataError(f"{place}.content", content, "has no text; images and other parts cannot be imported")
        dropped["parts"] += others
        content = "".join(texts)
    if content is not None and not isinstance(content, str):
        raise DataError(f"{place}.content", content, "must be text, a list of parts, or null")
    return content or ""


def _calls(message: Mapping[str, Any], place: str) -> Iterator[dict[str, Any]]:
    """Yield the calls of an assistant message, with their ids as `call`."""
    older = message.get("function_call")
    called = message.get("tool_calls") or ([older] if older else ())
    if not isinstance(called, list | tuple):
        raise DataError(f"{place}.tool_calls", called, "must be a list of calls")
    for j, call in enumerate(called):
        inner = call.get("function", call) if isinstance(call, dict) else None
        where = f"{place}.tool_calls[{j}]"
        if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
            raise DataError(where, call, "must have a function with a name")
        arguments = inner.get("arguments") or {}
        if isinstance(arguments, str):
            arguments = parse_line(arguments, f"{where}.arguments", "are not JSON ({})")
        if not isinstance(arguments, dict):
            raise DataError(f"{where}.arguments", arguments, "must be an object")
        name = inner["name"]
        yield {"role": "agent", "action": "call_tool", "name": name, "parameters": arguments, "call": call.get("id")}
