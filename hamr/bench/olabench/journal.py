"""Folder of an evaluation: every response and every verdict, appended on arrival.

A row is identified by its question and its pool (its `key`), not by its position, so another file of items, another
policy or judge may share the folder. Transient failures are retried by the next call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from hamr.bench.folder import append_to, lock_folder, rows_of
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


class Journal:
    """A context manager; locked by one process at a time."""

    def __init__(self, folder: Path) -> None:
        """Load the rows of the folder. Raises BadInput where another process uses it or a row is damaged."""
        self.folder, self._lock = folder, lock_folder(folder)
        try:
            self.responses = dict(_response(where, row) for where, row in rows_of(folder / RESPONSES))
            self.verdicts = dict(_verdict(where, row) for where, row in rows_of(folder / VERDICTS))
            self._files = {name: append_to(folder / name) for name in (RESPONSES, VERDICTS)}
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for file in self._files.values():
            file.close()
        self._lock.close()

    def add_response(self, key: str, response: PolicyResponse, about: Mapping[str, Any]) -> None:
        """Append a response. `about`: informative fields for readers of the rows."""
        self.responses[key] = response
        self._write(RESPONSES, {"key": key, **about, **response.to_json()})

    def add_verdict(self, key: str, verdict: JudgeVerdict, about: Mapping[str, Any]) -> None:
        self.verdicts[key] = verdict
        judgement = verdict.judgement
        said = {} if judgement is None else {name: getattr(judgement, name) for name in _SAID}
        self._write(VERDICTS, {"key": key, **about, **said, "failure": verdict.failure, "detail": verdict.detail})

    def _write(self, name: str, row: Mapping[str, Any]) -> None:
        """Append and flush the row, so that it survives a killed process. ASCII, because of lone surrogates."""
        file = self._files[name]
        file.write(json.dumps(row, ensure_ascii=True) + "\n")
        file.flush()


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
