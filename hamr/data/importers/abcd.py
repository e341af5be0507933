"""ABCD (asappresearch, MIT): chats of human agents who followed guidelines and used the buttons of a back end.

A line of the input is a decision point: `ticket, policy_ref, tools_ref, history, gold, window, reference_candidates,
source`. The policies file is {"policies": {ref: {"text"}}, "tools": {ref: {button: {"slots": [names]}}}}.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hamr.data.columns import group_meta
from hamr.data.importers.points import ReferringPoint, referring_rows
from hamr.data.importers.reading import json_object
from hamr.data.importers.widen import calls_in, slot_tool
from hamr.data.samples import unique_samples
from hamr.types import ServiceSample


def import_abcd(*, input: Path, policies: Path | None = None, group: str | None = None) -> list[ServiceSample]:
    """Return one sample per decision point, in the order of the file.

    A button is a tool whose slots are optional texts. Other parameters of its calls in the file are accepted too.
    DataError has the place `file:line: field`.
    """
    known = json_object(policies, "policies", ("policies", "tools"))
    rows = referring_rows(input, ReferringPoint, known, policies, group)
    calls = calls_in((*row["history"], row["gold"], (row.get("window") or {}).get("a_next")) for _, row in rows)
    tools = {
        ref: [slot_tool(name, button.get("slots", ()), calls) for name, button in buttons.items()]
        for ref, buttons in known["tools"].items()
    }
    return unique_samples((where, _convert(row, known["policies"], tools, group)) for where, row in rows)


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
