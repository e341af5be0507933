"""STAR as its repository publishes it: `dialogues/*.json`, `tasks/*/*.json` and `apis/apis/*.json`.

A dialogue has {"DialogueID", "CompletionLevel", "Scenario": {"Happy", "UserTask", "WizardCapabilities": [{"Domain",
"Task"}]}, "Events": [{"Agent", "Action", ...}]}. The wizard drafts an answer (`request_suggestions`), picks a template
(`pick_suggestion`, with its node of the flow chart) or sends its own words (`utter`), and queries a back end (`query`,
answered by `return_item`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from hamr.data.columns import check_column, group_meta
from hamr.data.importers.reading import json_file
from hamr.data.shapes import Shape, check_shape
from hamr.errors import DataError

_TYPES = {"Integer": "integer", "Boolean": "boolean", "CategoricalMultiple": "array"}
_CONDITION = re.compile(r"api\.(\w+)\((.*)\)", re.DOTALL)


class _Ability(Shape):
    Task: str


class _Scenario(Shape):
    WizardCapabilities: Annotated[list[_Ability], Field(min_length=1)]
    Domains: list[str | None] | None = None
    Happy: bool | None = None
    UserTask: str | None = None


class _Event(Shape):
    Agent: str
    Action: str
    Text: str | None = None
    ActionLabel: str | None = None
    APIName: str | None = None
    Constraints: list[dict[str, Any]] | None = None


class _Dialogue(Shape):
    DialogueID: int
    CompletionLevel: str
    Scenario: _Scenario
    Events: list[_Event]


class _Chart(Shape):
    graph: dict[str, str]
    replies: dict[str, str]


class _Field(Shape):
    Name: str
    Type: str
    Categories: list[str] | None = None
    ReadableName: str | None = None


class _Api(Shape):
    input: list[_Field]
    required: list[str] | None = None


class _Utterance(Shape):
    Text: str


class _Query(Shape):
    APIName: str
    Constraints: list[dict[str, Any]]


class _Returned(Shape):
    APIName: str


_NEEDED: Mapping[tuple[str, str], type[Shape]] = {
    ("User", "utter"): _Utterance,
    ("Wizard", "utter"): _Utterance,
    ("Wizard", "pick_suggestion"): _Utterance,
    ("Wizard", "query"): _Query,
    ("KnowledgeBase", "return_item"): _Returned,
    ("UserGuide", "instruct"): _Utterance,
}
_DRAFTS = 4
"""Drafts of other agents at the same node of the chart that become references."""


def read_release(folder: Path, group: str | None) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]:
    """Return (tasks, (place, decision point) of every complete dialogue), both in the form that `star` reads.

    Interrupted dialogues are left out. DataError names the file and its key.
    """
    tasks = _read_tasks(folder)
    paths = sorted((folder / "dialogues").glob("*.json"), key=lambda path: (len(path.stem), path.stem))
    if not paths:
        raise DataError("input", str(folder), "has no dialogues/*.json; give the folder of the STAR repository")
    points: list[tuple[str, dict[str, Any]]] = []
    columns: dict[str, Any] = {}
    for path in paths:
        dialogue = json_file(path, "input")
        check_shape(_Dialogue, dialogue, str(path))
        columns |= dialogue
        if dialogue["CompletionLevel"] == "Complete":
            grouped = group_meta(dialogue, group)
            points += ((str(path), {**point, "grouped": grouped}) for point in _points(dialogue, path, tasks))
    if group and not any(point["grouped"] for _, point in points):
        check_column("group", group, [columns], f"{folder.name}/dialogues")
    _add_drafts(points, tasks)
    return tasks, points


# --- tasks -------------------------------------------------------------------------------------


def _read_tasks(folder: Path) -> dict[str, Any]:
    tasks: dict[str, Any] = {}
    for path in sorted((folder / "tasks").glob("*/*.json")):
        if path.stem != path.parent.name:
            continue
        chart, api = json_file(path, "input"), json_file(folder / "apis" / "apis" / path.name, "input")
        check_shape(_Chart, chart, str(path))
        check_shape(_Api, api, str(folder / "apis" / "apis" / path.name))
        tasks[f"star/{path.stem}"] = {
            "task": path.stem,
            "start": next(iter(chart["graph"]), "hello"),
            "edges": chart["graph"],
            "nodes": chart["replies"],
            "tool": _tool(path.stem, api),
        }
    if not tasks:
        raise DataError("input", str(folder), "has no tasks/*/*.json; give the folder of the STAR repository")
    return tasks


def _tool(name: str, api: Mapping[str, Any]) -> dict[str, Any]:
    properties = {}
    for field in api["input"]:
        spec = {"type": _TYPES.get(field["Type"], "string"), "description": field.get("ReadableName", field["Name"])}
        if field["Type"] == "Categorical":
            spec["enum"] = field.get("Categories", [])
        elif field["Type"] == "RequestType":
            spec["enum"] = ["Check", "Book"]
        properties[field["Name"]] = spec
    schema = {"type": "object", "properties": properties, "required": api.get("required", [])}
    return {"name": name, "description": "", "parameters": schema}


# --- dialogues ---------------------------------------------------------------------------------


def _points(dialogue: Mapping[str, Any], path: Path, tasks: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    scenario = dialogue["Scenario"]
    refs = [f"star/{able['Task']}" for able in scenario["WizardCapabilities"]]
    if unknown := [ref for ref in refs if ref not in tasks]:
        raise DataError(f"{path}: Scenario.WizardCapabilities", unknown[0], "has no file in tasks/")
    turns, drafts, nodes = _turns(dialogue["Events"], path)
    instructions = [event.get("Text") for event in dialogue["Events"] if event["Action"] == "instruct"]
    number = str(dialogue["DialogueID"])
    first = next((i for i, turn in enumerate(turns) if turn["role"] == "customer"), len(turns))
    actions = [i for i, turn in enumerate(turns) if i > first and turn["role"] == "agent"]
    for i in actions:
        yield {
            "id": f"star-{number}-{i}",
            "source": {"dialogue_id": number},
            "point": turns[i]["action"],
            "ticket": {
                "product": ", ".join(filter(None, scenario.get("Domains") or ())),
                "task": ", ".join(ref.removeprefix("star/") for ref in refs),
                "happy_path": scenario.get("Happy"),
            },
            "policy_ref": refs,
            "tools_ref": refs,
            "history": turns[:i],
            "gold": {**turns[i], "sop_node": nodes.get(i)},
            "reference_candidates": [{"content": text, "origin": "same_agent_draft"} for text in drafts.get(i, ())],
            "privileged": {"ticket_summary": scenario.get("UserTask") or "", "user_instructions": instructions},
            "window": {"q_next": turns[i + 1 :], "a_next": None} if i == actions[-1] else None,
        }


def _turns(events: list[Any], path: Path) -> tuple[list[dict[str, Any]], dict[int, list[str]], dict[int, str]]:
    """Return (turns, drafts of a reply by its turn, node of a reply by its turn)."""
    turns: list[dict[str, Any]] = []
    drafts: dict[int, list[str]] = {}
    nodes: dict[int, str] = {}
    draft = ""
    for i, event in enumerate(events):
        place = f"{path}: Events[{i}]"
        kind = (event["Agent"], event["Action"])
        if kind in _NEEDED:
            check_shape(_NEEDED[kind], event, place)
        if kind == ("User", "utter"):
            turns.append({"role": "customer", "content": event["Text"].strip()})
            draft = ""
        elif kind == ("Wizard", "request_suggestions"):
            draft = event.get("Text") or ""
        elif kind in (("Wizard", "pick_suggestion"), ("Wizard", "utter")):
            if kind[1] == "pick_suggestion":
                nodes[len(turns)] = event.get("ActionLabel") or "custom"
                drafts[len(turns)] = [draft] if draft.strip() else []
            turns.append({"role": "agent", "action": "reply", "content": event["Text"].strip()})
            draft = ""
        elif kind == ("Wizard", "query"):
            given = {name: value for pair in event["Constraints"] for name, value in pair.items() if value != ""}
            parameters = {name: _constraint(value) for name, value in given.items()}
            nodes[len(turns)] = "query"
            turns.append({"role": "agent", "action": "call_tool", "name": event["APIName"], "parameters": parameters})
        elif kind == ("KnowledgeBase", "return_item"):
            content = {"item": event.get("Item"), "total_items": event.get("TotalItems")}
            text = json.dumps(content, ensure_ascii=False)
            turns.append({"role": "tool", "name": event["APIName"], "content": text})
    return turns, drafts, nodes


def _constraint(written: Any) -> Any:
    """Return the value of a constraint: JSON, `api.is_equal_to(JSON)`, another condition on it, or plain text."""
    if not isinstance(written, str):
        return written
    match = _CONDITION.fullmatch(written)
    if match and match[1] == "is_equal_to":
        return _constraint(match[2])
    if match:
        return {"op": match[1], "value": _constraint(match[2])}
    if written in ("True", "False"):
        return written == "True"
    try:
        return json.loads(written)
    except ValueError:
        return written


def _add_drafts(points: list[tuple[str, dict[str, Any]]], tasks: Mapping[str, Any]) -> None:
    """Add the drafts of other agents who then picked the same template, where it has no values to fill in."""
    by_node: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for _, point in points:
        if len(point["tools_ref"]) == 1:
            for draft in point["reference_candidates"]:
                key = (point["tools_ref"][0], point["gold"]["sop_node"])
                by_node.setdefault(key, []).append((point["source"]["dialogue_id"], draft["content"]))
    for _, point in points:
        ref, node = point["tools_ref"][0], point["gold"]["sop_node"]
        template = tasks[ref]["nodes"].get(node, "{") if len(point["tools_ref"]) == 1 else "{"
        if point["point"] == "reply" and "{" not in template:
            others = [text for number, text in by_node.get((ref, node), ()) if number != point["source"]["dialogue_id"]]
            start = int(point["source"]["dialogue_id"])  # other drafts for other dialogues
            chosen = [others[(start + k) % len(others)] for k in range(min(_DRAFTS, len(others)))]
            point["reference_candidates"] += [
                {"content": text, "origin": "other_agent_same_sop_node"} for text in chosen
            ]
