"""Folder of an evaluation: every response and every verdict, appended on arrival.

A row is identified by its question and its pool (its `key`), not by its position, so another file of items, another
policy or judge may share the folder. Transient failures are retried by the next call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hamr.bench.answers import RESPONSES, ResponseLog
from hamr.bench.folder import parsed_rows
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

    names = (RESPONSES, VERDICTS)

    def _load(self) -> None:
        super()._load()
        self._verdicts = {
            str(row.get("key")): JudgeVerdict(
                judgement=None if row.get("failure") else judgement,
                failure=row.get("failure"),
                detail=row.get("detail", ""),
            )
            for row, judgement in parsed_rows(self.folder / VERDICTS, Judgement, "a judgement")
        }

    def verdict(self, key: str) -> JudgeVerdict:
        """Return a verdict; a missing one counts as a transient failure."""
        return self._verdicts.get(key, JudgeVerdict(failure="judge_unavailable", detail="not asked"))

    def add_verdict(self, key: str, verdict: JudgeVerdict, about: Mapping[str, Any]) -> None:
        self._verdicts[key] = verdict
        judgement, names = verdict.judgement, ("grade", "labels", "reason", "compared")
        fields = {} if judgement is None else {name: getattr(judgement, name) for name in names}
        self._write(VERDICTS, {"key": key, **about, **fields, "failure": verdict.failure, "detail": verdict.detail})
