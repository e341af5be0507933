"""Lossless conversion of RewardRecord to and from JSON.

Floats are exact (Python writes the shortest text that reads back as the same double). NaN and infinities are rejected:
a score that is not a number has to be a typed failure. Tool parameters are JSON-like by contract, so a tuple inside
them is read back as a list.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import TypeAdapter

from hamr.data.samples import action_json
from hamr.errors import HamrError
from hamr.types import (
    Absent,
    Action,
    Failure,
    MalformedResponse,
    Outcome,
    Reply,
    RewardRecord,
    Scored,
    ToolCall,
    Total,
    Vetoed,
)

_RARE = frozenset({"turn", "item_scores", "correction", "observation", "episode"})
"""Fields that are left out where they are empty."""
_RECORD = TypeAdapter(RewardRecord)


def failure_kinds() -> dict[str, type[Failure]]:
    """Return every kind of failure by its `kind`."""
    kinds: tuple[type[Failure], ...] = (Failure, *Failure.__subclasses__())
    return {cls.kind: cls for cls in kinds}


def record_to_dict(record: RewardRecord) -> dict[str, Any]:
    return dict(_encode(record))


def _encode(value: Any) -> Any:
    if isinstance(value, Reply | ToolCall):
        return action_json(value)
    if is_dataclass(value):
        found = {name: getattr(value, name) for name in (field.name for field in fields(value))}
        kind = {"kind": value.kind} if isinstance(value, Outcome) else {}
        return kind | {name: _encode(own) for name, own in found.items() if own or name not in _RARE}
    if isinstance(value, tuple):
        return [_encode(own) for own in value]
    return dict(value) if isinstance(value, Mapping) else value


def record_from_dict(data: Mapping[str, Any]) -> RewardRecord:
    """Inverse of `record_to_dict`.

    Raises ValueError for data that are not a record, and HamrError for a kind that this version of hamr does not know.
    """
    decoded = {**data, "total": total_from_dict(data["total"]), "components": _components(data["components"])}
    decoded["action"] = action_from_dict(data["action"])
    if episode := data.get("episode"):
        decoded["episode"] = {**episode, "components": _components(episode["components"])}
    return _RECORD.validate_python(decoded)


def _components(data: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{**component, "outcome": outcome_from_dict(component["outcome"])} for component in data]


def outcome_from_dict(data: Mapping[str, Any]) -> Outcome:
    """Convert an outcome from JSON. Raises HamrError for a kind that this version of hamr does not know."""
    kinds = failure_kinds() | {cls.kind: cls for cls in (Scored, MalformedResponse, Absent, Vetoed)}
    kind = data["kind"]
    if kind not in kinds:
        raise HamrError(f"outcome kind {kind!r} is unknown; known: {sorted(kinds)}; written by a newer hamr?")
    return kinds[kind](**{name: value for name, value in data.items() if name != "kind"})


def total_from_dict(data: Mapping[str, Any]) -> Total:
    """Convert a total from JSON. Raises HamrError for a kind that only a component can have."""
    outcome = outcome_from_dict(data)
    if isinstance(outcome, Absent):
        raise HamrError(f"a total of kind {outcome.kind!r}; only a component can be absent")
    return outcome


def action_from_dict(data: Mapping[str, Any] | None) -> Action | None:
    """Convert an action from the sample format."""
    if data is None:
        return None
    if data["action"] == "reply":
        return Reply(content=data["content"])
    return ToolCall(name=data["name"], parameters=data["parameters"])


def record_to_json(record: RewardRecord) -> str:
    """Return one line of ASCII JSON. Raises HamrError with the response's key if a number is not finite."""
    try:
        return json.dumps(record_to_dict(record), allow_nan=False, separators=(",", ":"))
    except ValueError as e:
        raise HamrError(f"the record of {record.key} contains a number that is not finite: {e}") from e


def record_from_json(text: str) -> RewardRecord:
    """Inverse of `record_to_json`."""
    return record_from_dict(json.loads(text))
