"""Whole tickets: the file format, decision points and windows, and imported corpora."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hamr.data.importers import IMPORTERS
from hamr.data.samples import from_json, to_json, turn_json
from hamr.data.tickets import read_chats
from hamr.data.trajectories import (
    Trajectory,
    Window,
    decision_points,
    read_trajectories,
    trajectory_from_json,
    trajectory_to_json,
    windows,
    write_trajectories,
)
from hamr.errors import DataError
from hamr.types import Reply, ToolCall

FIND = {"name": "find", "description": "", "parameters": {"type": "object", "properties": {"n": {"enum": [1, 2]}}}}
TURNS = [
    {"role": "agent", "content": "Welcome."},
    {"role": "customer", "content": "Where is it?"},
    {"role": "agent", "content": "One moment."},
    {"role": "agent", "action": "call_tool", "name": "find", "parameters": {"n": 1}},
    {"role": "tool", "name": "find", "content": "sent"},
    {"role": "customer", "content": "Well?"},
    {"role": "agent", "content": "It was sent."},
]


def row(turns: Any = None, **fields: Any) -> dict[str, Any]:
    return {"id": "t", "ticket": {"a": 1}, "policy": "p", "tools": [FIND], "turns": turns or TURNS, **fields}


def test_trajectories_survive_the_file_round_trip(tmp_path: Path) -> None:
    made = trajectory_from_json(row(privileged={"ticket_summary": "x"}, meta={"split": "test"}, documents=["d"]))
    write_trajectories(tmp_path / "t.jsonl", [made])
    assert read_trajectories(tmp_path / "t.jsonl") == [made]
    write_trajectories(tmp_path / "t.jsonl", [made, made])
    with pytest.raises(DataError, match="already used on line 1"):
        read_trajectories(tmp_path / "t.jsonl")


def test_decision_points_and_windows_are_extracted() -> None:
    made = trajectory_from_json(row(meta={"split": "train"}, documents=["Wait.", "Call."]))
    points = list(decision_points(made))
    assert [i for i, _ in points] == [2, 3, 6], "a greeting decides nothing"
    assert [s.id for _, s in points] == ["t-2", "t-3", "t-6"]
    assert [s.references[0].action for _, s in points] == [
        Reply(content="One moment."), ToolCall(name="find", parameters={"n": 1}), Reply(content="It was sent."),
    ]  # fmt: skip
    for i, sample in points:
        assert sample.history == made.turns[:i]
        assert from_json(to_json(sample)) == sample
        assert sample.documents == ("Wait.", "Call.")
        assert sample.meta == {"dialogue": "t", "split": "train"}
    again, whole, end = windows(made)
    assert (again, end) == ("the agent acts again immediately", "the ticket ends")
    assert isinstance(whole, Window)
    assert whole.environment == made.turns[4:6], "a tool's result and a customer's turn"
    assert whole.actions == (ToolCall(name="find", parameters={"n": 1}), Reply(content="It was sent."))


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ("x", "must be a JSON object"),
        ({"id": "t"}, "turns"),
        (row(TURNS[1:2]), "no turn of the agent"),
        (row(TURNS[:1]), "no turn of the customer"),
        (row([*TURNS, {"role": "tool", "name": "find", "content": "x"}]), "turns[7]: 'find': a tool result"),
        (row([TURNS[1], TURNS[3], {"role": "tool", "name": "look", "content": "x"}]), "turns[2]: 'look'"),
        (row([*TURNS, {"role": "agent", "action": "call_tool", "name": "look", "parameters": {}}]), "turns[7].name"),
        (row([*TURNS, {**TURNS[3], "parameters": {"n": 3}}]), "turns[7].parameters.n"),
        (row([*TURNS, {"role": "agent", "content": " "}]), "turns[7].content"),
        (row([*TURNS, {"role": "boss", "content": "x"}]), "turns[7].role"),
        (row(tools=None), "tools"),
    ],
)  # fmt: skip
def test_invalid_line_is_named(bad: Any, said: str) -> None:
    with pytest.raises(DataError) as refused:
        trajectory_from_json(bad, where="f:3")
    assert str(refused.value).startswith("f:3: ")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


# --- the messages form -------------------------------------------------------------------------


def as_messages(made: Trajectory) -> dict[str, Any]:
    """The inverse of the importer, as chat APIs write it."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": made.policy}]
    for i, turn in enumerate(made.turns):
        if turn.tool_call is not None:
            function = {"name": turn.tool_call.name, "arguments": json.dumps(dict(turn.tool_call.parameters))}
            calls = [{"id": f"c{i}", "type": "function", "function": function}]
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            last = f"c{i}"
        elif turn.role == "tool":
            messages.append({"role": "tool", "tool_call_id": last, "content": turn.content})
        else:
            parts = [{"type": "text", "text": turn.content}] if i % 2 else turn.content
            messages.append({"role": "user" if turn.role == "customer" else "assistant", "content": parts})
    return {"id": made.id, "messages": messages, "tools": [dict(tool) for tool in made.tools]}


def import_messages(folder: Path, *rows: Any) -> tuple[Trajectory, ...]:
    (folder / "m.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return read_chats(folder / "m.jsonl", hide=False).trajectories


def test_messages_survive_the_round_trip(tmp_path: Path) -> None:
    made = trajectory_from_json(row())
    (found,) = import_messages(tmp_path, as_messages(made))
    assert (found.id, found.policy, found.turns, found.tools) == (made.id, made.policy, made.turns, made.tools)
    told = as_messages(made)
    (unlisted,) = import_messages(tmp_path, {"messages": told["messages"]})
    assert unlisted.id == "1"
    assert unlisted.tools[0]["parameters"]["properties"] == {"n": {"anyOf": [{"type": "integer"}]}}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"role": "robot", "content": "x"}, "messages[2].role"),
        ({"role": "user", "content": 7}, "messages[2].content"),
        ("x", "messages[2]"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}, "'{': are not JSON"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}, "must be an object"),
        ({"role": "assistant", "tool_calls": [{"type": "function"}]}, "messages[2].tool_calls[0]"),
        ({"role": "tool", "content": "x"}, "without a preceding call"),
    ],
)  # fmt: skip
def test_invalid_message_is_named(tmp_path: Path, message: Any, said: str) -> None:
    before = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    with pytest.raises(DataError) as refused:
        import_messages(tmp_path, {"messages": [*before, message]})
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


# --- public corpora ----------------------------------------------------------------------------


def test_tau2_task_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"policies": {}, "tools": {}}')
    (tmp_path / "t.jsonl").write_text('{"id": "x", "user_scenario": {}}\n')
    with pytest.raises(DataError, match="is a task and not a conversation"):
        IMPORTERS["tau2"]({"input": tmp_path / "t.jsonl", "policies": tmp_path / "p.json"})


TAU_ROW = {
    "id": "a", "policy_ref": "p", "tools_ref": ["t"], "reward": 1.0,
    "messages": [
        {"role": "customer", "content": "Where is order 7?"},
        {"role": "agent", "action": "call_tool", "name": "find", "parameters": {"order": 7}},
        {"role": "tool", "name": "find", "content": "sent"},
        {"role": "agent", "content": "It was sent."},
    ],
}  # fmt: skip


def import_tau(folder: Path, policy: Any, tools: Any) -> Any:
    (folder / "t.jsonl").write_text(json.dumps(TAU_ROW) + "\n")
    (folder / "p.json").write_text(json.dumps({"policies": {"p": policy}, "tools": {"t": tools}}))
    return IMPORTERS["tau2"]({"input": folder / "t.jsonl", "policies": folder / "p.json"})


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "function": {"name": "find", "parameters": {"properties": {"order": {}}}}},
        {"name": "find", "description": "Finds an order."},
    ],
)
def test_tau_tools_may_be_wrapped_or_without_parameters(tmp_path: Path, tool: Any) -> None:
    [found] = import_tau(tmp_path, {"text": "Help."}, [tool]).trajectories
    [made] = found.tools
    assert made["name"] == "find" and "order" in made["parameters"]["properties"]


@pytest.mark.parametrize(
    ("policy", "tools", "place", "said"),
    [
        ("Help.", [], "policies.p", "must be a JSON object"),
        ({"text": "Help."}, {"find": {}}, "tools.t", "must be a list"),
        ({"text": "Help."}, ["find"], "tools.t[0]", "must be an object with name, description and parameters"),
        ({"text": "Help."}, [{"name": "", "parameters": {}}], "tools.t[0].name", "must be a non-empty text"),
    ],
)
def test_invalid_policies_of_tau_are_named(tmp_path: Path, policy: Any, tools: Any, place: str, said: str) -> None:
    with pytest.raises(DataError) as refused:
        import_tau(tmp_path, policy, tools)
    assert (refused.value.where, refused.value.remedy) == (f"{tmp_path / 'p.json'}: {place}", said)
    with pytest.raises(DataError, match=r"t.jsonl:1: policy_ref: 'p': not in .*p.json"):
        import_tau(tmp_path, {"documents": []}, [])


def public(*names: str) -> dict[str, Path]:
    folder = os.environ.get("HAMR_PUBLIC_DATA")
    if not folder:
        pytest.skip("HAMR_PUBLIC_DATA is not set")
    return dict(zip(("input", "policies"), (Path(folder) / name for name in names), strict=False))


def counted(trajectories) -> Counter[str]:
    return Counter(w if isinstance(w, str) else "complete" for t in trajectories for w in windows(t))


def test_star_tickets_have_the_windows_of_its_steps() -> None:
    found = IMPORTERS["star"](public("star_steps.jsonl", "star_policies.json"))
    assert (len(found.samples), len(found.trajectories)) == (567, 200)
    points = {
        (t.meta["dialogue"], tuple(json.dumps(turn_json(turn)) for turn in s.history)): w
        for t in found.trajectories
        for (_, s), w in zip(decision_points(t), windows(t), strict=True)
    }
    compared = 0
    for sample in found.samples:
        key = (sample.meta["dialogue"], tuple(json.dumps(turn_json(turn)) for turn in sample.history))
        window, told = points[key], sample.meta["window"]
        compared += 1
        if told["complete"] and isinstance(window, Window):
            assert [turn_json(turn) for turn in window.environment] == told["q_next"]
        else:
            assert isinstance(window, Window) <= told["complete"]
    assert compared == 567


def test_abcd_and_tau2_are_imported() -> None:
    abcd = IMPORTERS["abcd"](public("abcd_steps.jsonl", "abcd_policies_tools.json"))
    assert (len(abcd.samples), len(abcd.trajectories)) == (23, 2)
    tau = IMPORTERS["tau2"](public("tau1_airline_trajectories.jsonl", "tau_policies_tools.json"))
    assert tau.trajectories
    tasks = {t.meta["group"] for t in tau.trajectories}
    assert 1 < len(tasks) < len(tau.trajectories), "several runs of a task"
    for trajectory in (*abcd.trajectories, *tau.trajectories):
        assert trajectory_from_json(trajectory_to_json(trajectory)) == trajectory
    assert counted(tau.trajectories)["complete"] > 0


def test_real_conversations_survive_the_messages_form(tmp_path: Path) -> None:
    tau = IMPORTERS["tau2"](public("tau1_airline_trajectories.jsonl", "tau_policies_tools.json"))
    found = import_messages(tmp_path, *map(as_messages, tau.trajectories))
    assert [t.turns for t in found] == [t.turns for t in tau.trajectories]
