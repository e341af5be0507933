"""Trajectory file: one whole ticket per line, the source of decision points and planning windows.

    {"id": "t1", "ticket": {...}, "policy": "...", "tools": [...], "turns": [as a sample's history],
     "privileged": {...}, "meta": {...}}

`privileged`, `meta` and `documents` may be absent. Turns are in chronological order. Documents go to every decision
point.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hamr.data.samples import action_json, from_json, parse_reference, read_unique, turn_json, write_rows
from hamr.data.tools import parameter_problem, tool_spec
from hamr.errors import DataError
from hamr.types import Action, Reference, Reply, ServiceSample, ToolCall, Turn


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """One ticket from its first turn to its last. `meta["split"]`, if present, is the split of its samples."""

    id: str
    ticket: Mapping[str, Any]
    policy: str
    tools: tuple[Mapping[str, Any], ...]
    turns: tuple[Turn, ...]
    privileged: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    documents: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Window:
    """(a_t, q_{t+1}, a_{t+1}) after a decision point (first paper, section 3.2).

    `environment` holds the turns between the two actions: customer turns, tool results, or both in order; never empty.
    """

    sample: ServiceSample
    first: Action
    environment: tuple[Turn, ...]
    second: Action

    @property
    def actions(self) -> tuple[Action, Action]:
        return self.first, self.second


# --- decision points ---------------------------------------------------------------------------


def action_of(turn: Turn) -> Action:
    """Return the action of an agent turn."""
    return turn.tool_call or Reply(content=turn.content)


def action_turn(action: Action) -> Turn:
    if isinstance(action, ToolCall):
        return Turn(role="agent", tool_call=action)
    return Turn(role="agent", content=action.content)


def decision_points(trajectory: Trajectory) -> Iterator[tuple[int, ServiceSample]]:
    """Yield (turn, sample) for every agent turn after the first customer turn. The reference is the agent's action.

    A greeting before the first request is not a decision. If the agent has two turns in a row, both are points.
    """
    asked = False
    for i, turn in enumerate(trajectory.turns):
        asked = asked or turn.role == "customer"
        if turn.role == "agent" and asked:
            yield (
                i,
                ServiceSample(
                    id=f"{trajectory.id}-{i}",
                    ticket=trajectory.ticket,
                    policy=trajectory.policy,
                    tools=trajectory.tools,
                    history=trajectory.turns[:i],
                    references=(Reference(action=action_of(turn)),),
                    privileged=trajectory.privileged,
                    meta={"dialogue": trajectory.id, **trajectory.meta},
                    documents=trajectory.documents,
                ),
            )


def windows(trajectory: Trajectory) -> Iterator[Window | str]:
    """Yield the window of every decision point, or the reason why it has none: there is nothing to predict."""
    turns = trajectory.turns
    for i, sample in decision_points(trajectory):
        after = next((j for j in range(i + 1, len(turns)) if turns[j].role == "agent"), None)
        if after is None:
            yield "the ticket ends"
        elif after == i + 1:
            yield "the agent acts again immediately"
        else:
            yield Window(
                sample=sample,
                first=action_of(turns[i]),
                environment=turns[i + 1 : after],
                second=action_of(turns[after]),
            )


# --- file --------------------------------------------------------------------------------------


def read_trajectories(path: str | Path) -> list[Trajectory]:
    """Read all trajectories of the file, in order. Skip blank lines. Raise DataError at the first fault."""
    return [t for _, t in read_unique(path, lambda row, where: trajectory_from_json(row, where=where), lambda t: t.id)]


def write_trajectories(path: str | Path, trajectories: Iterable[Trajectory]) -> None:
    """Write the whole file atomically."""
    write_rows(path, (trajectory_to_json(trajectory) for trajectory in trajectories))


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
    """Return the line object of a trajectory. Inverse of `trajectory_from_json`."""
    return {
        "id": trajectory.id,
        "ticket": dict(trajectory.ticket),
        "policy": trajectory.policy,
        "tools": [dict(tool) for tool in trajectory.tools],
        "turns": [turn_json(turn) for turn in trajectory.turns],
        "privileged": dict(trajectory.privileged),
        "meta": dict(trajectory.meta),
        **({"documents": list(trajectory.documents)} if trajectory.documents else {}),
    }


def trajectory_from_json(row: Any, *, where: str = "trajectory") -> Trajectory:
    """Return the trajectory of a line object. DataError has the place `<where>: <field>`.

    Faults are those of a sample line, a ticket without agent or customer turns, a tool result without a preceding call,
    and a call that violates the schema of its tool.
    """
    if not isinstance(row, dict):
        raise DataError(f"{where}: line", row, "must be a JSON object")
    if "turns" not in row:
        raise DataError(f"{where}: turns", sorted(row), "missing field; add 'turns'")
    turns = row["turns"]
    roles = [turn.get("role") for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
    for role, remedy in (("agent", "it has no actions"), ("customer", "it has no requests")):
        if isinstance(turns, list) and role not in roles:
            raise DataError(f"{where}: turns", roles, f"no turn of the {role}: {remedy}; leave the ticket out")
    nothing = [{"action": "reply", "content": "-"}]  # a trajectory has no references; its actions are checked below
    try:
        sample = from_json({**row, "history": turns, "references": nothing}, where=where, own=("turns",))
    except DataError as error:
        raise DataError(error.where.replace(": history", ": turns"), error.value, error.remedy) from error
    _check_actions(sample, where)
    _check_order(sample.history, where)
    return Trajectory(
        id=sample.id,
        ticket=sample.ticket,
        policy=sample.policy,
        tools=sample.tools,
        turns=sample.history,
        privileged=sample.privileged,
        meta=sample.meta,
        documents=sample.documents,
    )


def _check_actions(sample: ServiceSample, where: str) -> None:
    """Check that a policy can generate every action, since each becomes a reference."""
    schemas = dict(tool_spec(tool) for tool in sample.tools)
    for i, turn in enumerate(sample.history):
        if turn.role == "agent":
            parse_reference(action_json(action_of(turn)), f"{where}: turns[{i}]", schemas)


def _check_order(turns: Sequence[Turn], where: str) -> None:
    """Check that every tool result comes after its call. Other turns may come between."""
    waiting: list[str] = []
    for i, turn in enumerate(turns):
        if turn.tool_call is not None:
            waiting.append(turn.tool_call.name)
        elif turn.role == "tool":
            name = turn.name or (waiting[0] if waiting else "")
            if name not in waiting:
                remedy = "a tool result without a preceding call; put the turns in chronological order"
                raise DataError(f"{where}: turns[{i}]", turn.name or turn.content, remedy)
            waiting.remove(name)


def fitting(call: ToolCall, tools: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if one of the tools accepts the call."""
    schemas = dict(tool_spec(tool) for tool in tools)
    return call.name in schemas and parameter_problem(call.parameters, schemas[call.name]) is None
