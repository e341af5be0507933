"""Rows of the corpora that name the policies and tools of a second file: decision points, or whole conversations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from hamr.data.columns import check_column
from hamr.data.samples import read_rows
from hamr.data.shapes import Shape, check_shape
from hamr.errors import DataError


class Referring(Shape):
    id: str
    policy_ref: str
    tools_ref: list[str]


class _Candidate(Shape):
    content: str


class ReferringPoint(Referring):
    ticket: dict[str, Any]
    history: list[Any]
    gold: dict[str, Any]
    reference_candidates: list[_Candidate] = Field(default_factory=list)
    privileged: dict[str, Any] = Field(default_factory=dict)
    source: dict[str, Any] = Field(default_factory=dict)


class ReferringConversation(Referring):
    messages: list[Any]
    reward: float

    @model_validator(mode="before")
    @classmethod
    def _no_task(cls, row: Any) -> Any:
        if isinstance(row, dict) and "messages" not in row and "user_scenario" in row:
            raise ValueError("is a task and not a conversation; give the file of trajectories")
        return row


def referring_rows(
    input: Path,
    shape: type[Referring],
    known: Mapping[str, Collection[str]],
    policies: Path | None,
    group: str | None = None,
) -> list[tuple[str, dict[str, Any]]]:
    """Return (`file:line`, row) of every row, in order. `known`: the names of the policies and of the tools.

    Raises DataError for a row that does not have the shape or names something unknown, and for an unknown group.
    """
    rows = [(f"{input}:{number}", row) for number, row in read_rows(input)]
    for where, row in rows:
        check_shape(shape, row, where)
        for field, section in (("policy_ref", "policies"), ("tools_ref", "tools")):
            for ref in row[field] if isinstance(row[field], list) else [row[field]]:
                if ref not in known[section]:
                    raise DataError(f"{where}: {field}", ref, f"not in {policies}")
    check_column("group", group, (row for _, row in rows), input.name)
    return rows
