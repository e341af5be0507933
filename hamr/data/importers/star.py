"""STAR (RasaHQ, MIT): conversations of human agents who followed a flow chart and queried a back end.

The input is the folder of the repository (`star_release`), or a file whose lines are decision points: `ticket,
policy_ref, tools_ref, history, gold, reference_candidates, privileged, window, source`. The policies file maps a
`policy_ref` to {"start", "edges", "nodes", "tool"}.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hamr.data.columns import group_meta
from hamr.data.importers.imported import Imported, from_samples
from hamr.data.importers.reading import ReferringPoint, is_release, read_policies, referring_rows
from hamr.data.importers.star_release import read_release
from hamr.data.importers.widen import calls_in, widened_tool
from hamr.data.samples import check_tool, unique_samples
from hamr.data.shapes import Shape
from hamr.data.words import plain
from hamr.errors import DataError

MAX_REFERENCES = 6


class _Task(Shape):
    task: str
    start: str
    edges: dict[str, str]
    nodes: dict[str, Any]
    tool: dict[str, Any]


def import_star(files: Mapping[str, Path], *, group: str | None = None) -> Imported:
    """Return one sample per decision point, in the order of the file.

    References are the logged action first and then the replies of other agents at the same step, each wording once
    (ignoring case and punctuation), at most MAX_REFERENCES. The instruction of the customer to stay on the happy path
    is unknown to agents, so it moves from the ticket to `privileged`. Tool schemas are widened to accept the calls in
    the file. DataError has the place `file:line: field`.
    """
    input, policies = files["input"], files.get("policies")
    if is_release(input, ("DialogueID",), policies):
        tasks, rows = read_release(input, group)
    else:
        tasks, rows = _read_points(input, policies, group)
    calls = calls_in(_calls(row) for _, row in rows)
    texts = {ref: policy_text(task) for ref, task in tasks.items()}
    tools = {ref: widened_tool(task["tool"], calls.get(task["tool"]["name"], [])) for ref, task in tasks.items()}
    return from_samples(unique_samples((where, _convert(row, texts, tools)) for where, row in rows))


def _read_points(
    input: Path, policies: Path | None, group: str | None
) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]:
    tasks = read_policies(policies, dict[str, _Task])
    if not tasks:
        raise DataError("policies", str(policies), "must be a JSON object of procedures")
    for ref, task in tasks.items():
        check_tool(task["tool"], f"{policies}: {ref}.tool")
    rows = referring_rows(input, ReferringPoint, {"policies": tasks, "tools": tasks}, policies, group)
    return tasks, [(where, {**row, "grouped": group_meta(row, group)}) for where, row in rows]


def _calls(row: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Yield every tool call of a decision point, including its history, with parameters unwrapped in place.

    Malformed calls are skipped; `from_json` reports them.
    """
    for action in (*row["history"], row["gold"]):
        if isinstance(action, dict) and isinstance(action.get("parameters"), dict):
            action["parameters"] = {name: _single(value) for name, value in action["parameters"].items()}
            yield action


def _single(value: Any) -> Any:
    """Unwrap a list of one element: the corpus sometimes wraps the only choice of a menu in a list."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _convert(row: Mapping[str, Any], texts: Mapping[str, str], tools: Mapping[str, Any]) -> dict[str, Any]:
    gold, policies = row["gold"], row["policy_ref"]
    ticket = {name: value for name, value in row["ticket"].items() if name != "happy_path"}
    hidden = {name: value for name, value in row["ticket"].items() if name == "happy_path"}
    source = row.get("source", {})
    meta = {
        "dataset": "star",
        "dialogue": str(source.get("dialogue_id", row["id"])),
        "point": row.get("point"),
        "window": row.get("window"),
        **row["grouped"],
    }
    if gold.get("sop_node") not in (None, "custom"):
        meta["cluster"] = gold["sop_node"]
    return {
        "id": row["id"],
        "ticket": ticket,
        "policy": "\n\n".join(texts[ref] for ref in ([policies] if isinstance(policies, str) else policies)),
        "tools": [tools[ref] for ref in dict.fromkeys(row["tools_ref"])],
        "history": row["history"],
        "references": _references(gold, row.get("reference_candidates", [])),
        "privileged": {**row.get("privileged", {}), **hidden},
        "meta": meta,
    }


def _references(gold: Mapping[str, Any], candidates: Iterable[Any]) -> list[dict[str, Any]]:
    first = {name: value for name, value in gold.items() if name != "sop_node"}
    if gold.get("action") != "reply":
        return [first]
    content = " ".join(str(gold.get("content", "")).split())
    found = {plain(content): {"action": "reply", "content": content, "source": "logged"}}
    for candidate in candidates:
        content = " ".join(candidate["content"].split())
        entry = {"action": "reply", "content": content, "source": str(candidate.get("origin", "candidate"))}
        if plain(content):
            found.setdefault(plain(content), entry)
    return list(found.values())[:MAX_REFERENCES]


# --- flow charts as text -----------------------------------------------------------------------


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
