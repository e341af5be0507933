from __future__ import annotations

import copy
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from hamr.data.hiding import hide_in
from hamr.data.importers import IMPORTERS
from hamr.data.importers.star import policy_text
from hamr.data.importers.widen import widened_tool
from hamr.data.rendering import policy_messages
from hamr.data.samples import read_samples, write_samples
from hamr.data.tools import parameter_problem
from hamr.errors import DataError
from hamr.types import Reply, ToolCall

TASK = {
    "task": "room_book",
    "start": "hello",
    "edges": {
        "hello": "room_ask_day",
        "room_ask_day": "query_check",
        "available": "query_book",
        "query_book": "room_done",
        "no": "room_ask_day",
    },
    "nodes": {
        "hello": "Hello!",
        "room_ask_day": "Which day?",
        "query_check": "Query Check",
        "query_book": "Query Book",
        "available": "Available",
        "room_done": "Done.",
        "no": "No",
        "goodbye_1": "Bye.",
    },
    "tool": {
        "name": "room_book",
        "parameters": {
            "type": "object",
            "properties": {"Day": {"type": "string", "enum": ["Monday", "Sunday"]}, "Seats": {"type": "integer"}},
            "required": ["Day", "Seats"],
        },
    },
}
ROW = {
    "id": "star-1-1",
    "source": {"dialogue_id": 1},
    "point": "reply",
    "ticket": {"task": "room_book", "happy_path": False},
    "policy_ref": "star/room_book",
    "tools_ref": ["star/room_book"],
    "history": [
        {"role": "customer", "content": "A room."},
        {"role": "agent", "action": "call_tool", "name": "room_book", "parameters": {"Day": ["Monday"]}},
        {"role": "tool", "name": "room_book", "content": "{}"},
    ],
    "gold": {"action": "reply", "content": "Which  day?", "sop_node": "room_ask_day"},
    "reference_candidates": [
        {"content": "Which day?", "origin": "gold"},
        {"content": "which DAY", "origin": "same_agent_draft"},
        {"content": " What day is it? ", "origin": "other_agent_same_sop_node"},
        {"content": "??", "origin": "other_agent_same_sop_node"},
    ],
    "privileged": {"ticket_summary": "Wants a room."},
}


@pytest.fixture
def files(tmp_path):
    def write(*rows, tasks=None):
        steps, policies = tmp_path / "steps.jsonl", tmp_path / "policies.json"
        steps.write_text("\n".join(json.dumps(row) for row in rows))
        policies.write_text(json.dumps(tasks or {"star/room_book": TASK}))
        return {"input": steps, "policies": policies}

    return write


def _row(**changes):
    return {**copy.deepcopy(ROW), **changes}


def test_a_decision_point_becomes_a_sample(files):
    [sample] = IMPORTERS["star"](files(_row())).samples
    assert [r.action.content for r in sample.references] == ["Which day?", "What day is it?"]
    assert [r.source for r in sample.references] == ["logged", "other_agent_same_sop_node"]
    assert sample.ticket == {"task": "room_book"}
    assert sample.privileged == {"ticket_summary": "Wants a room.", "happy_path": False}
    assert sample.meta["dialogue"] == "1"
    assert sample.meta["cluster"] == "room_ask_day"
    assert sample.history[1].tool_call == ToolCall(name="room_book", parameters={"Day": "Monday"})
    assert "Wants a room" not in json.dumps(policy_messages(sample))


def test_call_with_a_constraint_widens_the_tool_schema(files):
    condition = {"op": "is_at_least", "value": 4}
    gold = {"action": "call_tool", "name": "room_book", "parameters": {"Day": "Monday", "Seats": condition}}
    [sample] = IMPORTERS["star"](files(_row(gold=gold, reference_candidates=[]))).samples
    assert sample.references[0].action == ToolCall(name="room_book", parameters=gold["parameters"])
    schema = sample.tools[0]["parameters"]
    assert schema["properties"]["Day"] == TASK["tool"]["parameters"]["properties"]["Day"]
    assert [a["type"] for a in schema["properties"]["Seats"]["anyOf"]] == ["integer", "object"]
    assert schema["required"] == ["Day"]


def test_widened_schema_admits_observed_values():
    calls = [{"Day": "Tuesday", "Seats": 2, "Note": "hi"}, {"Day": "Monday", "Seats": 2.5}]
    properties = widened_tool(TASK["tool"], calls)["parameters"]["properties"]
    assert properties["Day"]["anyOf"][1] == {"type": "string"}
    assert properties["Seats"]["anyOf"] == [{"type": "integer"}, {"type": "number"}]
    assert properties["Note"] == {"anyOf": [{"type": "string"}]}
    assert widened_tool(TASK["tool"], []) == TASK["tool"]


def test_flow_chart_is_rendered_as_text():
    assert policy_text(TASK).splitlines() == [
        "Task: room book. Steps, skip what is already known:",
        "hello > ask day > call room_book (check)",
        "Available: call room_book (book) > done",
        "No: ask day",
        "Also: goodbye",
    ]


def test_rendering_of_a_cyclic_chart_terminates():
    assert policy_text({**TASK, "edges": {"hello": "room_ask_day", "room_ask_day": "hello"}}).splitlines()[1] == (
        "hello > ask day > hello"
    )


@pytest.mark.parametrize(
    ("change", "field", "said"),
    [
        ({"policy_ref": "star/none"}, "policy_ref", "not in"),
        ({"tools_ref": [["star/room_book"]]}, "tools_ref[0]", "must be text"),
        ({"gold": {"action": "call_tool", "name": "room_book", "parameters": 3}}, "references[0].parameters", "object"),
        ({"gold": {"action": "call_tool", "name": "x", "parameters": {}}}, "references[0].name", "no such tool"),
        ({"gold": None}, "gold", "must be a JSON object"),
        ({"gold": {"action": "sing"}}, "references[0].action", "unknown action"),
        ({"gold": {"action": "reply", "content": ""}, "reference_candidates": []}, "references[0].content", "empty"),
        (
            {"gold": {"action": "reply"}, "reference_candidates": [3]},
            "reference_candidates[0]",
            "must be a JSON object",
        ),
        ({"history": [{"role": "boss", "content": ""}]}, "history[0].role", "unknown role"),
        ({"reference_candidates": {}}, "reference_candidates", "list"),
        ({"privileged": []}, "privileged", "must be a JSON object"),
    ],
)
def test_malformed_decision_point_is_named(files, change, field, said):
    paths = files(_row(), _row(id="star-1-2", **change))
    with pytest.raises(DataError) as caught:
        IMPORTERS["star"](paths)
    assert caught.value.where == f"{paths['input']}:2: {field}"
    assert said in caught.value.remedy


def test_missing_fields_duplicate_ids_and_invalid_policies_are_named(files, tmp_path):
    with pytest.raises(DataError, match=r"gold: .*missing field"):
        IMPORTERS["star"](files({k: v for k, v in ROW.items() if k != "gold"}))
    with pytest.raises(DataError, match="already used"):
        IMPORTERS["star"](files(_row(), _row()))
    with pytest.raises(DataError, match=r"start: .*missing"):
        IMPORTERS["star"](files(_row(), tasks={"star/room_book": {"task": "x"}}))
    paths = files(_row())
    paths["policies"].write_text("{")
    with pytest.raises(DataError, match="bad JSON"):
        IMPORTERS["star"](paths)
    with pytest.raises(DataError, match="no such file"):
        IMPORTERS["star"]({**paths, "policies": tmp_path / "absent.json"})


def test_public_corpus_is_imported(tmp_path):
    folder = os.environ.get("HAMR_PUBLIC_DATA")
    if not folder:
        pytest.skip("HAMR_PUBLIC_DATA is not set")
    root = Path(folder)
    imported = IMPORTERS["star"]({"input": root / "star_steps.jsonl", "policies": root / "star_policies.json"})
    samples = imported.samples
    assert len(samples) == 567
    hidden: Counter[str] = Counter()
    assert len(list(hide_in(imported.trajectories, hidden))) == 200  # every call is still one that its tool admits
    assert hidden["account"] > 0
    assert sum(isinstance(s.references[0].action, Reply) for s in samples) == 368
    assert sum(len(s.references) > 1 for s in samples) > 200
    for sample in samples:
        schemas = {tool["name"]: tool["parameters"] for tool in sample.tools}
        made = [r.action for r in sample.references] + [t.tool_call for t in sample.history if t.tool_call]
        for call in (a for a in made if isinstance(a, ToolCall)):
            assert parameter_problem(call.parameters, schemas[call.name]) is None
        assert len(sample.policy.split()) <= 120
    write_samples(tmp_path / "star.jsonl", samples)
    assert read_samples(tmp_path / "star.jsonl") == samples
