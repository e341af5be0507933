"""Folder of an evaluation: every response and every verdict, appended on arrival.

A row is identified by its question and its pool (its `key`), not by its position, so another file of items, another
policy or judge may share the folder. Transient failures are retried by the next call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hamr.bench.answers import ResponseLog
from hamr.errors import BadInput
from hamr.files import numbered_rows
from hamr.types import Judgement

VERDICTS = "judgements.jsonl"
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


class Journal(ResponseLog):
    """Responses and verdicts by key."""

    def __init__(self, folder: Path) -> None:
        """Raises BadInput where another process uses the folder or a row is damaged."""
        super().__init__(folder, (VERDICTS,))

    def _load(self) -> None:
        super()._load()
        self.verdicts = dict(_verdict(where, row) for where, row in numbered_rows(self.folder / VERDICTS))

    def add_verdict(self, key: str, verdict: JudgeVerdict, about: Mapping[str, Any]) -> None:
        self.verdicts[key] = verdict
        judgement = verdict.judgement
        fields = {} if judgement is None else {name: getattr(judgement, name) for name in _FIELDS}
        self._write(VERDICTS, {"key": key, **about, **fields, "failure": verdict.failure, "detail": verdict.detail})


_FIELDS = ("grade", "labels", "reason", "compared")


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
