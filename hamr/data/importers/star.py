"""STAR (RasaHQ, MIT): conversations of human agents who followed a flow chart and queried a back end.

The input is the folder of the repository (`star_release`), or a file whose lines are decision points: `ticket,
policy_ref, tools_ref, history, gold, reference_candidates, privileged, window, source`. The policies file maps a
`policy_ref` to {"start", "edges", "nodes", "tool"}.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hamr.data.columns import check_column, group_meta
from hamr.data.importers.reading import is_release, json_object
from hamr.data.importers.sop import policy_text
from hamr.data.importers.star_release import read_release
from hamr.data.importers.widen import widened_tool
from hamr.data.samples import from_json, read_rows
from hamr.errors import DataError
from hamr.types import ServiceSample

MAX_REFERENCES = 6
_FIELDS = {"id": str, "ticket": dict, "policy_ref": str, "tools_ref": list, "history": list, "gold": dict}
_OPTIONAL = {"reference_candidates": list, "privileged": dict, "source": dict}
_TASK_FIELDS = {"task": str, "start": str, "edges": dict, "nodes": dict, "tool": dict}


def import_star(
    *, input: Path, policies: Path | None = None, group: str | None = None, max_references: int = MAX_REFERENCES
) -> list[ServiceSample]:
    """Return one sample per decision point, in the order of the file.

    References are the logged action first and then the replies of other agents at the same step, each wording once
    (ignoring case and punctuation), at most `max_references`. The instruction of the customer to stay on the happy path
    is unknown to agents, so it moves from the ticket to `privileged`. Tool schemas are widened to accept the calls in
    the file. DataError has the place `file:line: field`.
    """
    if is_release(input, ("DialogueID",), policies):
        tasks, rows = read_release(input, group)
    else:
        tasks, rows = _read_points(input, policies, group)
    calls: dict[str, list[Mapping[str, Any]]] = {}
    for _, row in rows:
        for call in _calls(row):
            calls.setdefault(str(call.get("name")), []).append(call["parameters"])
    texts = {ref: policy_text(task) for ref, task in tasks.items()}
    tools = {ref: widened_tool(task["tool"], calls.get(task["tool"]["name"], [])) for ref, task in tasks.items()}
    samples: dict[str, ServiceSample] = {}
    for where, row in rows:
        sample = from_json(_convert(row, texts, tools, max_references), where=where)
        if sample.id in samples:
            raise DataError(f"{where}: id", sample.id, "already used on an earlier line; make it unique")
        samples[sample.id] = sample
    return list(samples.values())


def _read_points(
    input: Path, policies: Path | None, group: str | None
) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]:
    tasks = _read_policies(policies)
    rows = [(f"{input}:{number}", row) for number, row in read_rows(input)]
    for where, row in rows:
        _check(row, tasks, where, policies)
    if group:
        check_column("group", group, (row for _, row in rows), input.name)
    return tasks, [(where, {**row, "grouped": group_meta(row, group)}) for where, row in rows]


def _read_policies(path: Path | None) -> dict[str, Any]:
    tasks = json_object(path, "policies", ())
    if not isinstance(tasks, dict) or not tasks:
        raise DataError("policies", str(path), "must be a JSON object of procedures")
    for ref, task in tasks.items():
        for field, kind in _TASK_FIELDS.items():
            if not isinstance(task, dict) or not isinstance(task.get(field), kind):
                raise DataError(
                    f"{path}: {ref}.{field}", None, f"missing or not a {kind.__name__}; is this the STAR file?"
                )
        if not isinstance(task["tool"].get("name"), str) or not isinstance(task["tool"].get("parameters"), dict):
            raise DataError(f"{path}: {ref}.tool", task["tool"], "must have a name and an object of parameters")
    return tasks


def _check(row: Any, tasks: Mapping[str, Any], where: str, policies: Path | None) -> None:
    """Check the fields that the conversion needs before `from_json` validates the row."""
    if not isinstance(row, dict):
        raise DataError(f"{where}: line", row, "must be a JSON object")
    for field, kind in {**_FIELDS, **_OPTIONAL}.items():
        if field not in row and field in _FIELDS:
            raise DataError(f"{where}: {field}", sorted(row), f"missing field; add {field!r}")
        if not isinstance(row.get(field, kind()), kind):
            raise DataError(f"{where}: {field}", row[field], f"must be of type {kind.__name__}")
    for field, refs in (("policy_ref", [row["policy_ref"]]), ("tools_ref", row["tools_ref"])):
        for ref in refs:
            if not isinstance(ref, str) or ref not in tasks:
                raise DataError(f"{where}: {field}", ref, f"not in {policies}")
    for i, candidate in enumerate(row.get("reference_candidates", [])):
        if not isinstance(candidate, dict) or not isinstance(candidate.get("content"), str):
            raise DataError(
                f"{where}: reference_candidates[{i}]", candidate, "must be an object with a text as content"
            )


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


def _as_list(refs: str | list[str]) -> list[str]:
    return [refs] if isinstance(refs, str) else refs


def _convert(
    row: Mapping[str, Any], texts: Mapping[str, str], tools: Mapping[str, Any], max_references: int
) -> dict[str, Any]:
    gold = row["gold"]
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
        "policy": "\n\n".join(texts[ref] for ref in _as_list(row["policy_ref"])),
        "tools": [tools[ref] for ref in dict.fromkeys(row["tools_ref"])],
        "history": row["history"],
        "references": _references(gold, row.get("reference_candidates", []), max_references),
        "privileged": {**row.get("privileged", {}), **hidden},
        "meta": meta,
    }


def _references(gold: Mapping[str, Any], candidates: Iterable[Any], most: int) -> list[dict[str, Any]]:
    first = {name: value for name, value in gold.items() if name != "sop_node"}
    if gold.get("action") != "reply":
        return [first]
    content = " ".join(str(gold.get("content", "")).split())
    found = {_wording(content): {"action": "reply", "content": content, "source": "logged"}}
    for candidate in candidates:
        content = " ".join(candidate["content"].split())
        entry = {"action": "reply", "content": content, "source": str(candidate.get("origin", "candidate"))}
        if _wording(content):
            found.setdefault(_wording(content), entry)
    return list(found.values())[:most]


def _wording(text: str) -> str:
    return " ".join("".join(c if c.isalnum() else " " for c in text.lower()).split())
