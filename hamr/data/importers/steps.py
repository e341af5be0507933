"""Whole tickets from decision points: the files of the corpora contain a dialogue as its decision points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hamr.data.samples import history_from_json
from hamr.data.trajectories import Trajectory, action_turn, fitting
from hamr.types import ServiceSample, Turn


def trajectories_of(samples: Iterable[ServiceSample]) -> list[Trajectory]:
    """Return one trajectory per dialogue (`meta["dialogue"]`), in the order of their first points.

    Its turns are the longest history of the dialogue, the agent's action there (the first reference), and the following
    turns in `meta["window"]` = {"q_next": [turns], "a_next": turn}. A call in the window that the tools of the sample
    do not accept is excluded, since a reference made of it would be invalid.
    """
    last: dict[str, ServiceSample] = {}
    for sample in samples:
        dialogue = str(sample.meta.get("dialogue", sample.id))
        if dialogue not in last or len(sample.history) > len(last[dialogue].history):
            last[dialogue] = sample
    return [_trajectory(dialogue, sample) for dialogue, sample in last.items()]


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
