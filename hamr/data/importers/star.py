"""STAR (RasaHQ, MIT): conversations of human agents who followed a flow chart and queried a back end.

The input is the folder of the repository (`star_release`), or a file whose lines are decision points: `ticket,
policy_ref, tools_ref, history, gold, reference_candidates, privileged, window, source`. The policies file maps a
`policy_ref` to {"start", "edges", "nodes", "tool"}.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from hamr.data.columns import group_meta
from hamr.data.importers.points import ReferringPoint, referring_rows
from hamr.data.importers.reading import is_release, json_object
from hamr.data.importers.sop import policy_text
from hamr.data.importers.star_release import read_release
from hamr.data.importers.widen import calls_in, widened_tool
from hamr.data.samples import unique_samples
from hamr.data.shapes import Shape, check_shape
from hamr.data.words import plain
from hamr.errors import DataError
from hamr.types import ServiceSample

MAX_REFERENCES = 6


class _Tool(Shape):
    name: str
    parameters: dict[str, Any]


class _Task(Shape):
    task: str
    start: str
    edges: dict[str, Any]
    nodes: dict[str, Any]
    tool: _Tool


def import_star(*, input: Path, policies: Path | None = None, group: str | None = None) -> list[ServiceSample]:
    """Return one sample per decision point, in the order of the file.

    References are the logged action first and then the replies of other agents at the same step, each wording once
    (ignoring case and punctuation), at most MAX_REFERENCES. The instruction of the customer to stay on the happy path
    is unknown to agents, so it moves from the ticket to `privileged`. Tool schemas are widened to accept the calls in
    the file. DataError has the place `file:line: field`.
    """
    if is_release(input, ("DialogueID",), policies):
        tasks, rows = read_release(input, group)
    else:
        tasks, rows = _read_points(input, policies, group)
    calls = calls_in(_calls(row) for _, row in rows)
    texts = {ref: policy_text(task) for ref, task in tasks.items()}
    tools = {ref: widened_tool(task["tool"], calls.get(task["tool"]["name"], [])) for ref, task in tasks.items()}
    return unique_samples((where, _convert(row, texts, tools)) for where, row in rows)


def _read_points(
    input: Path, policies: Path | None, group: str | None
) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]:
    tasks = json_object(policies, "policies", ())
    if not tasks:
        raise DataError("policies", str(policies), "must be a JSON object of procedures")
    check_shape(TypeAdapter(dict[str, _Task]), tasks, str(policies))
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
