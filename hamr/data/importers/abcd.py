"""ABCD (asappresearch, MIT): chats of human agents who followed guidelines and used the buttons of a back end.

A line of the input is a decision point: `ticket, policy_ref, tools_ref, history, gold, window, reference_candidates,
source`. The policies file is {"policies": {ref: {"text"}}, "tools": {ref: {button: {"slots": [names]}}}}.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hamr.data.columns import check_column, group_meta
from hamr.data.importers.reading import json_object, need
from hamr.data.importers.widen import Calls, calls_in, widened_tool
from hamr.data.samples import from_json, read_rows
from hamr.errors import DataError
from hamr.types import ServiceSample

_FIELDS = {"id": str, "ticket": dict, "policy_ref": str, "tools_ref": list, "history": list, "gold": dict}


def import_abcd(*, input: Path, policies: Path | None, group: str | None = None) -> list[ServiceSample]:
    """Return one sample per decision point, in the order of the file.

    A button is a tool whose slots are optional texts. Other parameters of its calls in the file are accepted too.
    DataError has the place `file:line: field`.
    """
    known = json_object(policies, "policies", ("policies", "tools"))
    rows = [(f"{input}:{number}", row) for number, row in read_rows(input)]
    calls: Calls = {}
    for where, row in rows:
        need(row, where, _FIELDS)
        calls_in((*row["history"], row["gold"], (row.get("window") or {}).get("a_next")), calls)
    if group:
        check_column("group", group, (row for _, row in rows), input.name)
    tools = {ref: _buttons(buttons, calls) for ref, buttons in known["tools"].items()}
    samples: dict[str, ServiceSample] = {}
    for where, row in rows:
        for field, refs, given in (
            ("policy_ref", [row["policy_ref"]], known["policies"]), ("tools_ref", row["tools_ref"], tools),
        ):  # fmt: skip
            for ref in refs:
                if ref not in given:
                    raise DataError(f"{where}: {field}", ref, f"not in {policies}")
        sample = from_json(_convert(row, known["policies"], tools, group), where=where)
        if sample.id in samples:
            raise DataError(f"{where}: id", sample.id, "already used on an earlier line; make it unique")
        samples[sample.id] = sample
    return list(samples.values())


def _buttons(buttons: Mapping[str, Any], calls: Calls) -> list[dict[str, Any]]:
    tools = []
    for name, button in buttons.items():
        properties = {slot: {"type": "string"} for slot in button.get("slots", ())}
        schema = {"type": "object", "properties": properties, "required": []}
        tools.append(widened_tool({"name": name, "description": "", "parameters": schema}, calls.get(name, [])))
    return tools


def _convert(
    row: Mapping[str, Any], policies: Mapping[str, Any], tools: Mapping[str, Any], group: str | None
) -> dict[str, Any]:
    source = row.get("source") or {}
    return {
        "id": row["id"],
        "ticket": row["ticket"],
        "policy": policies[row["policy_ref"]]["text"],
        "tools": [tool for ref in row["tools_ref"] for tool in tools[ref]],
        "history": row["history"],
        "references": [row["gold"]],
        "privileged": row.get("privileged", {}),
        "meta": {
            "dataset": "abcd",
            "dialogue": str(source.get("convo_id", row["id"])),
            "point": row.get("point"),
            "window": row.get("window"),
            **group_meta(row, group),
        },
    }
