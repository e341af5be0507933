"""ABCD as its repository publishes it: `abcd_v1.1.json` or `.json.gz`, with `guidelines.json` and `ontology.json`.

The file is {"train" | "dev" | "test": [conversation]} or, like the sample of the repository, a list of conversations:
{"convo_id", "scenario": {"personal", "order", "flow", "subflow"}, "original": [[speaker, text]], "delexed":
[{"targets": [subflow, next step, button, [values], utterance]}]}. The two lists have the same turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from hamr.data.columns import check_column, group_meta
from hamr.data.importers.reading import json_file
from hamr.data.importers.widen import calls_in, slot_tool
from hamr.data.shapes import Shape, check_shape
from hamr.data.trajectories import Trajectory, trajectory_from_json
from hamr.errors import DataError

_SPLITS = {"train": "train", "dev": "validation", "test": "test"}
_FILES = ("abcd_v1.1.json", "abcd_v1.1.json.gz")


class _Scenario(Shape):
    flow: str
    subflow: str
    personal: dict[str, Any] | None = None
    order: dict[str, Any] | None = None


class _Labels(Shape):
    targets: list[Any]


class _Conversation(Shape):
    convo_id: int
    scenario: _Scenario
    original: list[Annotated[list[str], Field(min_length=2, max_length=2)]]
    delexed: list[_Labels]


class _Step(Shape):
    button: str
    type: str
    text: str
    subtext: list[str]


class _Guide(Shape):
    instructions: list[str]
    actions: list[_Step]


class _Flow(Shape):
    subflows: dict[str, _Guide]
    description: str | None = None


class _Intents(Shape):
    subflows: dict[str, list[str]]


class _Values(Shape):
    enumerable: dict[str, list[str]] | None = None


class _Ontology(Shape):
    intents: _Intents
    actions: dict[str, dict[str, list[str]]]
    values: _Values


def read_release(input: Path, group: str | None) -> list[Trajectory]:
    """Return the conversations, each with the guideline of its case and all buttons. They keep their published splits.

    The names of a button's values come from the scenario and the ontology. The customer's data are privileged, since
    the agent asks for them. DataError names the conversation and its field.
    """
    path = input
    if input.is_dir():
        path = next((input / name for name in _FILES if (input / name).exists()), input / _FILES[0])
    ontology = json_file(path.with_name("ontology.json"), "input")
    check_shape(_Ontology, ontology, str(path.with_name("ontology.json")))
    cases = _cases(path.with_name("guidelines.json"), ontology["intents"]["subflows"])
    parts = json_file(path, "input")
    parts = {"": parts} if isinstance(parts, list) else parts
    rows = [(name, row) for name, part in parts.items() if isinstance(part, list) for row in part]
    converted = []
    for name, row in rows:
        where = f"{path}: {name and f'{name}: '}{row.get('convo_id') if isinstance(row, dict) else row!r}"
        check_shape(_Conversation, row, where)
        converted.append((where, name, row, list(_turns(row, where, ontology))))
    check_column("group", group, (row for _, row in rows), path.name)
    calls = calls_in(turns for *_, turns in converted)
    slots = {button: named for part in ontology["actions"].values() for button, named in part.items()}
    tools = [slot_tool(button, slots.get(button, ()), calls) for button in dict.fromkeys([*slots, *calls])]
    return [
        trajectory_from_json(
            {
                "id": f"abcd-{row['convo_id']}",
                "ticket": {"flow": row["scenario"].get("flow"), "task": row["scenario"].get("subflow")},
                "policy": _policy(row["scenario"], cases, where),
                "tools": tools,
                "turns": turns,
                "privileged": {"customer": row["scenario"].get("personal"), "order": row["scenario"].get("order")},
                "meta": {
                    "dataset": "abcd",
                    "dialogue": str(row["convo_id"]),
                    **({"split": _SPLITS[name]} if name in _SPLITS else {}),
                    **group_meta(row, group),
                },
            },
            where=where,
        )
        for where, name, row, turns in converted
    ]


# --- turns -------------------------------------------------------------------------------------


def _turns(row: Mapping[str, Any], where: str, ontology: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if len(row["original"]) != len(row["delexed"]):
        raise DataError(
            f"{where}: delexed", len(row["delexed"]), f"must have the {len(row['original'])} turns of original"
        )
    for i, (utterance, labels) in enumerate(zip(row["original"], row["delexed"], strict=True)):
        speaker, text = utterance
        if speaker in ("customer", "agent"):
            yield {"role": speaker, "content": text}
        elif speaker == "action":
            button, values = (*labels["targets"], None, None, None)[2:4]
            if not isinstance(button, str) or not isinstance(values, list):
                remedy = "must name the button and its values, as [subflow, step, button, [values], utterance]"
                raise DataError(f"{where}: delexed[{i}].targets", labels["targets"], remedy)
            parameters = _parameters(button, values, row["scenario"], ontology)
            yield {"role": "agent", "action": "call_tool", "name": button, "parameters": parameters}
            yield {"role": "tool", "name": button, "content": text}
        else:
            raise DataError(f"{where}: original[{i}]", speaker, "unknown speaker; use customer, agent or action")


def _parameters(
    button: str, values: Sequence[Any], scenario: Mapping[str, Any], ontology: Mapping[str, Any]
) -> dict[str, Any]:
    """Name the values of a button by its slots, the scenario's facts and the ontology's lists, or else in order."""
    free = [slot for part in ontology["actions"].values() for slot in part.get(button, ())]
    in_order = len(free) == len(values)
    facts = {**(scenario.get("personal") or {}), **(scenario.get("order") or {})}
    listed = ontology["values"].get("enumerable", {})
    found: dict[str, Any] = {}
    for i, value in enumerate(values):
        options = {
            slot: {str(known).lower() for known in (facts.get(slot), *listed.get(slot, ())) if known is not None}
            for slot in free
        }
        slot = next((slot for slot, known in options.items() if str(value).lower() in known), "")
        slot = slot or next((name for name, known in facts.items() if str(known).lower() == str(value).lower()), "")
        slot = slot or (free[0] if in_order else f"value_{i}")
        free = [other for other in free if other != slot]
        found[slot] = value
    return found


# --- guidelines --------------------------------------------------------------------------------


def _cases(path: Path, subflows: Mapping[str, Sequence[str]]) -> dict[str, dict[str, str]]:
    """Return flow -> subflow -> text. The guidelines list the cases of a flow in the order of the ontology."""
    cases: dict[str, dict[str, str]] = {}
    guidelines = json_file(path, "input")
    check_shape(dict[str, _Flow], guidelines, str(path))
    for title, flow in guidelines.items():
        name = title.lower().replace(" ", "_").replace("-", "_")
        texts = [_text(title, flow, case, guide) for case, guide in flow["subflows"].items()]
        cases[name] = dict(zip(subflows.get(name, ()), texts, strict=False))
    return cases


def _text(title: str, flow: Mapping[str, Any], case: str, guide: Mapping[str, Any]) -> str:
    lines = [f"Flow: {title}. {flow.get('description', '')}", f"Case: {case}"]
    lines += (f"- {line}" for line in guide["instructions"])
    for number, step in enumerate(guide["actions"], start=1):
        lines.append(f"Step {number} [{step['button']}] ({step['type']}): {step['text']}")
        lines += (f"    * {line}" for line in step["subtext"])
    return "\n".join(lines)


def _policy(scenario: Mapping[str, Any], cases: Mapping[str, Mapping[str, str]], where: str) -> str:
    """Return the guideline of the scenario. A subflow may have the number of a question (`timing_4`)."""
    flow = cases.get(str(scenario.get("flow")), {})
    subflow = str(scenario.get("subflow"))
    name = max((name for name in flow if subflow.startswith(name)), key=len, default=None)
    if name is None:
        raise DataError(f"{where}: scenario.subflow", f"{scenario.get('flow')}/{subflow}", "not in guidelines.json")
    return flow[name]
