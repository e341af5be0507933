"""ABCD (asappresearch, MIT): chats of human agents who followed guidelines and used the buttons of a back end.

The input is the file that its repository publishes (`abcd_release`), or one whose lines are decision points: `ticket,
policy_ref, tools_ref, history, gold, window, reference_candidates, source`. The policies file is {"policies": {ref:
{"text"}}, "tools": {ref: {button: {"slots": [names]}}}}.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from hamr.data.columns import group_meta
from hamr.data.importers.abcd_release import read_release
from hamr.data.importers.imported import Imported, from_samples, from_trajectories
from hamr.data.importers.reading import (
    Policy,
    ReferringPoint,
    is_release,
    policy_texts,
    read_policies,
    referring_rows,
)
from hamr.data.importers.widen import calls_in, slot_tool
from hamr.data.samples import unique_samples
from hamr.data.shapes import Shape


class _Button(Shape):
    slots: list[str] = Field(default_factory=list)


class _Policies(Shape):
    policies: dict[str, Policy]
    tools: dict[str, dict[str, _Button]]


def import_abcd(files: Mapping[str, Path], *, group: str | None = None) -> Imported:
    """Return one sample per decision point, in the order of the file.

    A button is a tool whose slots are optional texts. Other parameters of its calls in the file are accepted too.
    DataError has the place `file:line: field`.
    """
    input, policies = files["input"], files.get("policies")
    if is_release(input, ("train", "dev", "test"), policies):
        return from_trajectories(read_release(input, group))
    known = read_policies(policies, _Policies)
    texts = policy_texts(known)
    rows = referring_rows(input, ReferringPoint, {**known, "policies": texts}, policies, group)
    calls = calls_in((*row["history"], row["gold"], (row.get("window") or {}).get("a_next")) for _, row in rows)
    tools = {
        ref: [slot_tool(name, button.get("slots", ()), calls) for name, button in buttons.items()]
        for ref, buttons in known["tools"].items()
    }
    converted = ((where, _convert(row, texts, tools, group)) for where, row in rows)
    return from_samples(unique_samples(converted))


def _convert(
    row: Mapping[str, Any], policies: Mapping[str, Any], tools: Mapping[str, Any], group: str | None
) -> dict[str, Any]:
    source = row.get("source") or {}
    return {
        "id": row["id"],
        "ticket": row["ticket"],
        "policy": policies[row["policy_ref"]],
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
