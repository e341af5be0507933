"""Public corpora with human labels, converted to labelled responses (`labelled`).

hallucination  answers of language models, to messages with or without evidence: hallucinated, yes or no
pairs          replies that human agents sent, or rejected, where another one is known: whether dialogue quality
               has to be high
tau            conversations of agents with simulated customers, and whether the task was done: whether policy
               compliance and tool calling have to be high at the agent's last act. The reward is that of the whole
               conversation, of which the last act is one part
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hamr.bench.olabench.labelled import UNKNOWN
from hamr.data.actions import render_action
from hamr.data.importers.reading import json_object, need
from hamr.data.importers.widen import Calls, calls_in, tools_from_calls
from hamr.data.samples import history_from_json, read_rows
from hamr.data.tools import tool_spec
from hamr.errors import DataError
from hamr.types import Reply

Row = dict[str, Any]


def convert(corpus: str, source: Path, policies: Path | None) -> list[Row]:
    """Return rows of the labelled form, in the file's order. Raises DataError at `file:line: field`."""
    rows = [(f"{source}:{number}", row) for number, row in read_rows(source)]
    return PUBLIC[corpus](rows, policies)


def _hallucination(rows: list[tuple[str, Any]], policies: Path | None) -> list[Row]:
    found = []
    for where, row in rows:
        need(row, where, {"id": str, "customer": str, "response": str, "evidence": list, "hallucination": str})
        if row["hallucination"] not in UNKNOWN:
            raise DataError(f"{where}: hallucination", row["hallucination"], "give yes or no")
        found.append(
            {
                "id": row["id"],
                "history": [{"role": "customer", "content": row["customer"]}],
                "evidence": [{"answer": text} for text in row["evidence"]],
                "response": row["response"],
                "labels": {"hallucination": row["hallucination"]},
            }
        )
    return found


def _pairs(rows: list[tuple[str, Any]], policies: Path | None) -> list[Row]:
    found = []
    for where, row in rows:
        need(row, where, {"id": str, "history": list, "content_B": str, "label": str})
        if row["label"] not in ("consistent", "inconsistent"):
            continue  # a partial match has no label for its quality
        tools = _tools_of(row["history"])
        found.append(
            {
                "id": row["id"],
                "tools": tools,
                "history": row["history"],
                "response": row["content_B"],
                "labels": {"good": {"dialogue": row["label"] == "consistent"}},
            }
        )
    return found


def _tau(rows: list[tuple[str, Any]], policies: Path | None) -> list[Row]:
    assert policies is not None, "asked for by the job"
    known = json_object(policies, "policies", ("policies", "tools"))
    found = []
    for where, row in rows:
        need(row, where, {"id": str, "policy_ref": str, "tools_ref": list, "messages": list, "reward": float})
        for section, refs in (("policies", [row["policy_ref"]]), ("tools", row["tools_ref"])):
            for ref in refs:
                if ref not in known[section]:
                    raise DataError(f"{where}: {section}", ref, f"not among those of {policies}")
        acts = [i for i, turn in enumerate(row["messages"]) if isinstance(turn, dict) and turn.get("role") == "agent"]
        if not acts:
            continue
        described = [tool for ref in row["tools_ref"] for tool in known["tools"][ref]]
        names = {tool_spec(tool)[0] for tool in described}
        (turn,) = history_from_json([row["messages"][acts[-1]]], where=where)
        found.append(
            {
                "id": row["id"],
                "policy": known["policies"][row["policy_ref"]]["text"],
                "tools": [*described, *(t for t in _tools_of(row["messages"]) if t["name"] not in names)],
                "history": row["messages"][: acts[-1]],
                "response": render_action(turn.tool_call or Reply(content=turn.content)),
                "labels": {"good": dict.fromkeys(("policy", "tool"), row["reward"] >= 1.0)},
            }
        )
    return found


def _tools_of(turns: list[Any]) -> list[Row]:
    """Return tools without a description, as inferred from the calls among these turns."""
    calls: Calls = {}
    calls_in(turns, calls)
    return tools_from_calls(calls, calls)


PUBLIC: Mapping[str, Callable[[list[tuple[str, Any]], Path | None], list[Row]]] = {
    "hallucination": _hallucination,
    "pairs": _pairs,
    "tau": _tau,
}
