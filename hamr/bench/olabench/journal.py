"""Folder of an evaluation: every response and every verdict, appended on arrival.

A row is identified by its question and its pool (its `key`), not by its position, so another file of items, another
policy or judge may share the folder. Transient failures are retried by the next call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hamr.bench.folder import RowFolder, rows_of
from hamr.bench.olabench.responses import PolicyResponse
from hamr.errors import BadInput
from hamr.types import Judgement

RESPONSES, VERDICTS = "responses.jsonl", "judgements.jsonl"
AWAY = ("judge_timeout", "judge_unavailable")


@dataclass(frozen=True, kw_only=True)
class JudgeVerdict:
    """One judge's verdict on one response: `judgement`, or the reason why there is none."""

    judgement: Judgement | None = None
    failure: str | None = None
    detail: str = ""

    @property
    def passing(self) -> bool:
        return self.failure in AWAY


class Journal(RowFolder):
    """Responses and verdicts by key."""

    def __init__(self, folder: Path) -> None:
        """Raises BadInput where another process uses the folder or a row is damaged."""
        super().__init__(folder, (RESPONSES, VERDICTS))

    def _load(self) -> None:
        self.responses = dict(_response(where, row) for where, row in rows_of(self.folder / RESPONSES))
        self.verdicts = dict(_verdict(where, row) for where, row in rows_of(self.folder / VERDICTS))

    def add_response(self, key: str, response: PolicyResponse, about: Mapping[str, Any]) -> None:
        """Append a response. `about`: informative fields for readers of the rows."""
        self.responses[key] = response
        self._write(RESPONSES, {"key": key, **about, **response.to_json()})

    def add_verdict(self, key: str, verdict: JudgeVerdict, about: Mapping[str, Any]) -> None:
        self.verdicts[key] = verdict
        judgement = verdict.judgement
        said = {} if judgement is None else {name: getattr(judgement, name) for name in _SAID}
        self._write(VERDICTS, {"key": key, **about, **said, "failure": verdict.failure, "detail": verdict.detail})


_SAID = ("grade", "labels", "reason", "compared")


def _response(where: str, row: Mapping[str, Any]) -> tuple[str, PolicyResponse]:
    try:
        response = PolicyResponse(**{name: row[name] for name in PolicyResponse.__dataclass_fields__})
        if (response.text is None) == (response.failure is None):
            raise KeyError("text")
        return str(row["key"]), response
    except KeyError as error:
        raise BadInput(where, str(error), "is not a response; restore the line, or remove it") from error


def _verdict(where: str, row: Mapping[str, Any]) -> tuple[str, JudgeVerdict]:
    try:
        if row["failure"] is not None:
            return str(row["key"]), JudgeVerdict(failure=row["failure"], detail=row["detail"])
        judgement = Judgement(
            component=row["component"],
            grade=row["grade"],
            labels=tuple(row["labels"]),
            reason=row["reason"],
            compared=row["compared"],
        )
        return str(row["key"]), JudgeVerdict(judgement=judgement)
    except (KeyError, TypeError) as error:
        raise BadInput(where, str(error), "is not a judgement; restore the line, or remove it") from error
