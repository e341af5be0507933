"""Lossless conversion of RewardRecord to and from JSON.

Floats are exact (Python writes the shortest text that reads back as the same double). NaN and infinities are rejected:
a score that is not a number has to be a typed failure. Tool parameters are JSON-like by contract, so a tuple inside
them is read back as a list.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hamr.errors import HamrError
from hamr.types import (
    Absent,
    Action,
    Audit,
    Component,
    EpisodeResult,
    Failure,
    ItemScore,
    Judgement,
    MalformedResponse,
    Outcome,
    ReferenceScore,
    Reply,
    RewardCorrection,
    RewardRecord,
    SampleKey,
    Scored,
    ScorerCall,
    ToolCall,
    Total,
    VersionSpan,
    Vetoed,
)


def failure_kinds() -> dict[str, type[Failure]]:
    """Return every kind of failure by its `kind`."""

    def walk(cls: type[Failure]) -> Iterator[type[Failure]]:
        yield cls
        for sub in cls.__subclasses__():
            yield from walk(sub)

    return {cls.kind: cls for cls in walk(Failure)}


def outcome_to_dict(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, Scored):
        return {"kind": Scored.kind, "value": outcome.value}
    return {"kind": outcome.kind, "detail": outcome.detail}


def outcome_from_dict(data: Mapping[str, Any]) -> Outcome:
    """Convert an outcome from JSON. Raises HamrError for a kind that this version of hamr does not know."""
    kind = data["kind"]
    if kind == Scored.kind:
        return Scored(value=data["value"])
    if kind == MalformedResponse.kind:
        return MalformedResponse(detail=data["detail"])
    kinds: dict[str, type[Failure | Absent]] = {**failure_kinds(), Absent.kind: Absent, Vetoed.kind: Vetoed}
    if kind not in kinds:
        raise HamrError(f"outcome kind {kind!r} is unknown; known: {sorted(kinds)}; written by a newer hamr?")
    return kinds[kind](detail=data["detail"])


def total_from_dict(data: Mapping[str, Any]) -> Total:
    """Convert a total from JSON. Raises HamrError for a kind that only a component can have."""
    outcome = outcome_from_dict(data)
    if isinstance(outcome, Absent):
        raise HamrError(f"a total of kind {outcome.kind!r}; only a component can be absent")
    return outcome


def action_to_dict(action: Action | None) -> dict[str, Any] | None:
    """Convert an action to the sample format: {"action": "reply", ...} or {"action": "call_tool", ...}."""
    if action is None:
        return None
    if isinstance(action, Reply):
        return {"action": "reply", "content": action.content}
    return {"action": "call_tool", "name": action.name, "parameters": dict(action.parameters)}


def action_from_dict(data: Mapping[str, Any] | None) -> Action | None:
    if data is None:
        return None
    if data["action"] == "reply":
        return Reply(content=data["content"])
    return ToolCall(name=data["name"], parameters=data["parameters"])


def record_to_dict(record: RewardRecord) -> dict[str, Any]:
    return {
        "key": {name: part for name, part in asdict(record.key).items() if name != "turn" or part},
        "total": outcome_to_dict(record.total),
        "components": _components_to_list(record.components),
        "action": action_to_dict(record.action),
        "band": record.band,
        "reference_scores": [asdict(r) for r in record.reference_scores],
        "calls": [asdict(c) for c in record.calls],
        "s_r": record.s_r,
        "s_j": record.s_j,
        "response": record.response,
        "response_tokens": record.response_tokens,
        "versions": [asdict(v) for v in record.versions],
        "seconds": record.seconds,
        "judgements": [_judgement_to_dict(j) for j in record.judgements],
        "audit": asdict(record.audit) if record.audit else None,
        **({"correction": asdict(record.correction)} if record.correction else {}),
        "fallback": record.fallback,
        "cascade": record.cascade,
        "mean_logprob": record.mean_logprob,
        "answer_tokens": record.answer_tokens,
        "answer_s": record.answer_s,
        **_episode_to_dict(record),
    }


def _episode_to_dict(record: RewardRecord) -> dict[str, Any]:
    """Return the part of a record that only dialogues have."""
    found: dict[str, Any] = {"observation": record.observation} if record.observation else {}
    if (end := record.episode) is not None:
        found["episode"] = {
            "outcome": end.outcome,
            "components": _components_to_list(end.components),
            "path": end.path,
        }
    return found


def _episode_from_dict(data: Mapping[str, Any]) -> EpisodeResult:
    return EpisodeResult(
        outcome=data["outcome"], components=_components_from_list(data["components"]), path=data["path"]
    )


def _components_to_list(components: Sequence[Component]) -> list[dict[str, Any]]:
    return [{"name": c.name, "weight": c.weight, "outcome": outcome_to_dict(c.outcome)} for c in components]


def _components_from_list(data: Sequence[Mapping[str, Any]]) -> tuple[Component, ...]:
    return tuple(Component(name=c["name"], weight=c["weight"], outcome=outcome_from_dict(c["outcome"])) for c in data)


def record_from_dict(data: Mapping[str, Any]) -> RewardRecord:
    return RewardRecord(
        key=SampleKey(**data["key"]),
        total=total_from_dict(data["total"]),
        components=_components_from_list(data["components"]),
        action=action_from_dict(data["action"]),
        band=data["band"],
        reference_scores=tuple(ReferenceScore(**r) for r in data["reference_scores"]),
        calls=tuple(ScorerCall(**c) for c in data["calls"]),
        s_r=data["s_r"],
        s_j=data["s_j"],
        response=data["response"],
        response_tokens=data["response_tokens"],
        versions=tuple(VersionSpan(**v) for v in data["versions"]),
        seconds=data["seconds"],
        # Older ledgers lack judged side rewards, audits, fallbacks, adaptive cascades, log-probabilities, or the
        # answer's end.
        judgements=tuple(_judgement(j) for j in data.get("judgements", ())),
        audit=Audit(**data["audit"]) if data.get("audit") else None,
        correction=_correction(data.get("correction")),
        fallback=data.get("fallback"),
        cascade=_cascade(data.get("cascade")),
        mean_logprob=data.get("mean_logprob"),
        answer_tokens=data.get("answer_tokens"),
        answer_s=data.get("answer_s"),
        observation=data.get("observation", ""),
        episode=_episode_from_dict(data["episode"]) if data.get("episode") else None,
    )


def _correction(data: Mapping[str, Any] | None) -> RewardCorrection | None:
    return RewardCorrection(**{**data, "strata": tuple(data["strata"])}) if data else None


def _cascade(data: Sequence[float] | None) -> tuple[float, float, float, float] | None:
    if data is None:
        return None
    tau_a, tau_b, w1, w2 = data
    return tau_a, tau_b, w1, w2


def _judgement_to_dict(judgement: Judgement) -> dict[str, Any]:
    return {name: value for name, value in asdict(judgement).items() if name != "item_scores" or value}


def _judgement(data: Mapping[str, Any]) -> Judgement:
    items = tuple((weight, passed) for weight, passed in data["items"])
    scores = tuple(ItemScore(**score) for score in data.get("item_scores", ()))
    return Judgement(**{**data, "labels": tuple(data["labels"]), "items": items, "item_scores": scores})


def record_to_json(record: RewardRecord) -> str:
    """Return one line of ASCII JSON. Raises HamrError with the response's key if a number is not finite."""
    try:
        return json.dumps(record_to_dict(record), allow_nan=False, separators=(",", ":"))
    except ValueError as e:
        raise HamrError(f"the record of {record.key} contains a number that is not finite: {e}") from e


def record_from_json(text: str) -> RewardRecord:
    """Inverse of `record_to_json`."""
    return record_from_dict(json.loads(text))
