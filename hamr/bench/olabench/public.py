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
from typing import Any, Literal

from hamr.data.actions import render_action
from hamr.data.importers.reading import ReferringConversation, read_listed_policies, referring_rows
from hamr.data.importers.widen import calls_in, tools_from_calls
from hamr.data.samples import history_from_json, read_rows
from hamr.data.shapes import Shape, check_shape
from hamr.data.tools import tool_spec
from hamr.types import Reply

BenchRow = dict[str, Any]


def convert(corpus: str, source: Path, policies: Path | None) -> list[BenchRow]:
    """Return rows of the labelled form, in the file's order. Raises DataError at `file:line: field`."""
    return PUBLIC[corpus](source, policies)


class _Judged(Shape):
    id: str
    customer: str
    response: str
    evidence: list[str]
    hallucination: Literal["yes", "no"]


class _Pair(Shape):
    id: str
    history: list[Any]
    content_B: str
    label: str


def _hallucination(source: Path, policies: Path | None) -> list[BenchRow]:
    found = []
    for number, row in read_rows(source):
        one = check_shape(_Judged, row, f"{source}:{number}")
        found.append(
            {
                "id": one.id,
                "history": [{"role": "customer", "content": one.customer}],
                "evidence": [{"answer": text} for text in one.evidence],
                "response": one.response,
                "labels": {"hallucination": one.hallucination},
            }
        )
    return found


def _pairs(source: Path, policies: Path | None) -> list[BenchRow]:
    found = []
    for number, row in read_rows(source):
        pair = check_shape(_Pair, row, f"{source}:{number}")
        if pair.label not in ("consistent", "inconsistent"):
            continue  # a partial match has no label for its quality
        found.append(
            {
                "id": pair.id,
                "tools": _tools_of(pair.history),
                "history": pair.history,
                "response": pair.content_B,
                "labels": {"good": {"dialogue": pair.label == "consistent"}},
            }
        )
    return found


def _tau(source: Path, policies: Path | None) -> list[BenchRow]:
    assert policies is not None, "asked for by the job"
    known = read_listed_policies(policies)
    found = []
    for where, row in referring_rows(source, ReferringConversation, known, policies):
        acts = [i for i, turn in enumerate(row["messages"]) if isinstance(turn, dict) and turn.get("role") == "agent"]
        if not acts:
            continue
        described = [tool for ref in row["tools_ref"] for tool in known["tools"][ref]]
        names = {tool_spec(tool)[0] for tool in described}
        (turn,) = history_from_json([row["messages"][acts[-1]]], where=where)
        found.append(
            {
                "id": row["id"],
                "policy": known["policies"][row["policy_ref"]],
                "tools": [*described, *(t for t in _tools_of(row["messages"]) if t["name"] not in names)],
                "history": row["messages"][: acts[-1]],
                "response": render_action(turn.tool_call or Reply(content=turn.content)),
                "labels": {"good": dict.fromkeys(("policy", "tool"), row["reward"] >= 1.0)},
            }
        )
    return found


def _tools_of(turns: list[Any]) -> list[BenchRow]:
    """Return tools without a description, as inferred from the calls among these turns."""
    calls = calls_in([turns])
    return tools_from_calls(calls, calls)


PUBLIC: Mapping[str, Callable[[Path, Path | None], list[BenchRow]]] = {
    "hallucination": _hallucination,
    "pairs": _pairs,
    "tau": _tau,
}
