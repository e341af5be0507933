"""Conversion of a flow chart to a few lines of text that an agent can follow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def policy_text(task: Mapping[str, Any]) -> str:
    """Return the procedure of {"task", "start", "edges", "nodes", "tool"}, one line per branch, with the names of the
    nodes.

    The first line follows the edges from the start. Every condition without an incoming edge starts its own line, which
    ends at a step that already occurred. Steps without any edge come last, as other possible replies. About 40 to 110
    tokens for the charts of the corpus.
    """
    edges: Mapping[str, str] = task["edges"]
    described: set[str] = set()
    lines = [f"Task: {_words(task['task'])}. Steps, skip what is already known:"]
    lines.append(_chain(task, task["start"], described))
    for condition in (name for name in edges if name not in edges.values() and name != task["start"]):
        if condition not in described:
            described.add(condition)
            meaning = str(task["nodes"].get(condition, condition)).strip().rstrip(".")
            lines.append(f"{meaning}: {_chain(task, edges[condition], described)}")
    rest = [name for name in task["nodes"] if name not in described and name not in edges]
    if rest:
        lines.append(f"Also: {', '.join(dict.fromkeys(_step(task, name) for name in rest))}")
    return "\n".join(lines)


def _chain(task: Mapping[str, Any], node: str, described: set[str]) -> str:
    steps = []
    while True:
        steps.append(_step(task, node))
        if node in described or node not in task["edges"]:
            described.add(node)
            return " > ".join(steps)
        described.add(node)
        node = task["edges"][node]


def _step(task: Mapping[str, Any], node: str) -> str:
    """`apartment_ask_day` becomes "ask day", `query_check` a call of the tool of the task."""
    name = re.sub(r"_\d+$", "", node)
    if name == "query" or name.startswith("query_"):
        purpose = name.removeprefix("query").strip("_")
        return f"call {task['tool']['name']}" + (f" ({_words(purpose)})" if purpose else "")
    return _words(name.removeprefix(f"{task['task'].partition('_')[0]}_"))


def _words(name: str) -> str:
    return name.replace("_", " ").strip()
