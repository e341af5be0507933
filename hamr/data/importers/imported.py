"""Imported dialogues: as decision points and as whole tickets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hamr.data.samples import history_from_json
from hamr.data.tables import TicketFault
from hamr.data.trajectories import Trajectory, action_turn, decision_points, fitting, trajectory_to_json
from hamr.types import ServiceSample, Turn


@dataclass(frozen=True, kw_only=True)
class Imported:
    """Content of a corpus or an export. The decision points of a ticket have its dialogue in their `meta`.

    `duplicates` are the ids of tickets that were excluded because an earlier one has the same content. `hidden` counts
    the aliases by kind. Only an export has the fields after it: `blank` counts the turns without text or call.
    """

    samples: Sequence[ServiceSample]
    trajectories: Sequence[Trajectory]
    duplicates: tuple[str, ...] = ()
    hidden: Mapping[str, int] = field(default_factory=dict)
    faults: tuple[TicketFault, ...] = ()
    blank: int = 0
    form: str = ""
    """Detected form of the file: format, delimiter, encoding, order of day and month."""


def from_trajectories(trajectories: Sequence[Trajectory]) -> Imported:
    """Return the import without duplicate dialogues. A duplicate under another id could be in both training and test
    data. Turns in `meta["not_references"]` are no decision points."""
    kept: dict[bytes, Trajectory] = {}
    duplicates = []
    for trajectory in trajectories:
        row = trajectory_to_json(trajectory)
        content = json.dumps([row[name] for name in ("ticket", "policy", "turns")], sort_keys=True)
        if kept.setdefault(hashlib.sha256(content.encode("utf-8", "replace")).digest(), trajectory) is not trajectory:
            duplicates.append(trajectory.id)
    samples = [
        sample
        for trajectory in kept.values()
        for i, sample in decision_points(trajectory)
        if i not in trajectory.meta.get("not_references", ())
    ]
    return Imported(samples=samples, trajectories=tuple(kept.values()), duplicates=tuple(duplicates))


def from_samples(samples: Sequence[ServiceSample]) -> Imported:
    """Return the import with one trajectory per dialogue (`meta["dialogue"]`), in the order of their first points.

    Its turns are the longest history of the dialogue, the agent's action there (the first reference), and the following
    turns in `meta["window"]` = {"q_next": [turns], "a_next": turn}. A call in the window that the tools of the sample
    do not accept is excluded, since a reference made of it would be invalid.
    """
    last: dict[str, ServiceSample] = {}
    for sample in samples:
        dialogue = str(sample.meta.get("dialogue", sample.id))
        if dialogue not in last or len(sample.history) > len(last[dialogue].history):
            last[dialogue] = sample
    return Imported(samples=samples, trajectories=[_trajectory(dialogue, sample) for dialogue, sample in last.items()])


def _trajectory(dialogue: str, sample: ServiceSample) -> Trajectory:
    dataset = sample.meta.get("dataset", "")
    return Trajectory(
        id=f"{dataset}-{dialogue}" if dataset else dialogue,
        ticket=sample.ticket,
        policy=sample.policy,
        tools=sample.tools,
        turns=(*sample.history, action_turn(sample.references[0].action), *_after(sample)),
        privileged=sample.privileged,
        meta={"dataset": dataset, "dialogue": dialogue} | {k: v for k, v in sample.meta.items() if k == "group"},
    )


def _after(sample: ServiceSample) -> tuple[Turn, ...]:
    window: Mapping[str, Any] = sample.meta.get("window") or {}
    rows = [*window.get("q_next", ()), *([window["a_next"]] if window.get("a_next") else [])]
    turns = history_from_json(rows, where=f"{sample.id}: window")
    if turns and turns[-1].tool_call is not None and not fitting(turns[-1].tool_call, sample.tools):
        return turns[:-1]
    return turns
