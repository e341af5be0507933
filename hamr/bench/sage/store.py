"""Folder of an evaluation: dialogues and judgements, row by row, so that no finished work is lost.

settings.json      the settings that determine the dialogues and their judgements
traces.jsonl       one row per dialogue; an interrupted one is followed by the row of its next attempt
judgements.jsonl   one row per assessed turn: every judge's votes
readings.jsonl     one row per dialogue whose customer the judges have read
reader_exams.jsonl one row per scenario: how well the judges read customers whose words are known
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from hamr.bench.folder import RowFolder, differences, parsed_rows
from hamr.bench.sage.customer_reading import CustomerReading
from hamr.bench.sage.judging import TurnJudgement
from hamr.bench.sage.reader_exam import ReaderExam
from hamr.bench.sage.traces import Trace
from hamr.data.columns import value_at
from hamr.errors import BadInput, first_fault
from hamr.files import write_atomic
from hamr.types import TRANSIENT

Key = tuple[str, str]
"""(agent, dialogue)."""
SETTINGS, TRACES, JUDGEMENTS = "settings.json", "traces.jsonl", "judgements.jsonl"
READINGS, EXAMS = "readings.jsonl", "reader_exams.jsonl"


class Store(RowFolder):
    """Dialogues and judgements of agents."""

    names = (TRACES, JUDGEMENTS, READINGS, EXAMS)
    ascii_only = False

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, rejudge: bool = False) -> None:
        """Load the rows of the folder.

        With `rejudge` the settings of the judges may differ. If they do, the rows of the judges are moved to
        judgements.old.jsonl and the like, the next time to judgements.old2.jsonl; otherwise they are kept.

        Raises BadInput for a folder that another process uses, that cannot be written, whose files are damaged, or that
        has dialogues with other settings. Nothing is changed then.
        """
        self.traces: dict[Key, Trace] = {}
        self.judgements: dict[Key, dict[int, TurnJudgement]] = {}
        self.readings: dict[Key, CustomerReading] = {}
        self.exams: dict[str, ReaderExam] = {}
        self._settings, self._rejudge = settings, rejudge
        super().__init__(folder)

    def _load(self) -> None:
        self.traces, self.judgements, self.readings, self.exams = load_rows(self.folder)
        before = self._in_force(read_settings(self.folder))
        check_settings(self.folder, before, self._settings, rejudge=self._rejudge)
        others = before.get("judging") != json.loads(json.dumps(self._settings.get("judging")))
        if self._rejudge and others and self._is_judged:
            files = [self.folder / name for name in (JUDGEMENTS, READINGS, EXAMS)]
            endings = (f".old{number}.jsonl" for number in itertools.chain([""], itertools.count(2)))
            free = next(end for end in endings if not any(file.with_suffix(end).exists() for file in files))
            for file in files:
                if file.is_file():
                    file.replace(file.with_suffix(free))
            self.judgements, self.readings, self.exams = {}, {}, {}
        merged = merge_settings(before, self._settings)
        write_atomic(self.folder / SETTINGS, json.dumps(merged, ensure_ascii=False, indent=1) + "\n")

    def finished_trace(self, agent: str, dialogue: str) -> Trace | None:
        trace = self.traces.get((agent, dialogue))
        return trace if trace is not None and trace.is_finished else None

    def open_turns(self, agent: str, dialogue: str, turns: list[int]) -> list[int]:
        """Return those of these turns that are not judged, or where a judge's pool was unavailable."""
        known = self.judgements.get((agent, dialogue), {})
        return [turn for turn in turns if turn not in known or any(v.failure in TRANSIENT for v in known[turn].votes)]

    def add_trace(self, trace: Trace) -> None:
        self.traces[trace.agent, trace.plan.id] = trace
        self._write(TRACES, asdict(trace))

    def add_judgement(self, judgement: TurnJudgement) -> None:
        self.judgements.setdefault((judgement.agent, judgement.dialogue), {})[judgement.turn] = judgement
        self._write(JUDGEMENTS, asdict(judgement))

    def add_reading(self, reading: CustomerReading) -> None:
        self.readings[reading.agent, reading.dialogue] = reading
        self._write(READINGS, asdict(reading))

    def add_exam(self, exam: ReaderExam, *, final: bool) -> None:
        """Keep an exam; one that is not final is repeated by the next command."""
        self.exams[exam.scenario] = exam
        if final:
            self._write(EXAMS, asdict(exam))

    @property
    def _is_judged(self) -> bool:
        return bool(self.judgements or self.readings or self.exams)

    def _in_force(self, before: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the stored settings that finished work depends on, so that a mistyped model or endpoint may be
        corrected."""
        finished = [trace for trace in self.traces.values() if trace.is_finished]
        if before is None or not finished:
            return {}
        held = {"agents": {t.agent for t in finished}, "scenarios": {t.plan.scenario for t in finished}}
        found = {key: value for key, value in before.items() if key != "judging" or self._is_judged}
        return {
            key: {name: known for name, known in value.items() if name in held[key]} if key in held else value
            for key, value in found.items()
        }


Rows = tuple[dict[Key, Trace], dict[Key, dict[int, TurnJudgement]], dict[Key, CustomerReading], dict[str, ReaderExam]]


def load_rows(folder: Path) -> Rows:
    """Return the newest row of each dialogue, the judgements by dialogue and turn, the readings of customers, and the
    exam of each scenario. Raises BadInput.
    """
    traces: dict[Key, Trace] = {}
    judgements: dict[Key, dict[int, TurnJudgement]] = {}
    for _, trace in parsed_rows(folder / TRACES, Trace, "a trace"):
        traces[trace.agent, trace.plan.id] = trace
    for _, one in parsed_rows(folder / JUDGEMENTS, TurnJudgement, "a judgement"):
        judgements.setdefault((one.agent, one.dialogue), {})[one.turn] = one
    read = parsed_rows(folder / READINGS, CustomerReading, "a reading")
    readings = {(reading.agent, reading.dialogue): reading for _, reading in read}
    exams = {exam.scenario: exam for _, exam in parsed_rows(folder / EXAMS, ReaderExam, "an exam")}
    return traces, judgements, readings, exams


# --- settings ----------------------------------------------------------------------------------


class _Settings(BaseModel):
    """Settings that every SAGE evaluation has, also that of a policy in training."""

    agents: dict[str, dict[str, Any]]
    scenarios: dict[str, dict[str, Any]]


def read_settings(folder: Path, key: str = "output") -> dict[str, Any] | None:
    """Return the settings of an existing evaluation; None where there is none. Raises BadInput for `key` where the file
    is damaged or that of another benchmark."""
    path = folder / SETTINGS
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        _Settings.model_validate(found)
    except ValidationError as error:
        raise BadInput(key, str(path), f"is not that of SAGE ({first_fault(error)}); give another folder") from None
    except (OSError, ValueError) as error:
        raise BadInput(key, str(path), "cannot be read; give another folder") from error
    return dict(found)


def finished_settings(folder: Path, key: str) -> dict[str, Any]:
    """Return the settings of an evaluation of `hamr evaluate benchmark=sage`. Raises BadInput for `key` where there is
    none."""
    found = read_settings(folder, key)
    if found is None:
        raise BadInput(key, str(folder), "contains no evaluation; give the folder of one")
    missing = [part for part in ("simulator.name", "judging.judges", "sage.seed") if value_at(found, part) is None]
    missing += [f"scenarios.{name}.given" for name, entry in found["scenarios"].items() if "given" not in entry]
    if missing:
        remedy = f"has no {missing[0]}; give a folder of `hamr evaluate benchmark=sage`"
        raise BadInput(key, str(folder / SETTINGS), remedy)
    return found


def check_settings(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any], *, rejudge: bool) -> None:
    """Check the settings: agents and scenarios may be added, existing ones must be unchanged. Raises BadInput."""
    now = json.loads(json.dumps(now))
    for key, was in before.items():
        if key == "judging" and rejudge:
            continue
        is_now = now.get(key, {})
        if key in ("agents", "scenarios"):
            shared = sorted(was.keys() & is_now.keys())
            was, is_now = {name: was[name] for name in shared}, {name: is_now[name] for name in shared}
        for name, old, new in differences(was, is_now, key):
            hint = "; to judge its dialogues again add rejudge=true" if key == "judging" else ""
            remedy = (
                f"was started with {name}={_brief(old)}, now {_brief(new)}: restore it or give another folder{hint}"
            )
            raise BadInput("output", str(folder), remedy)


def merge_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the folder's settings after this command."""
    return {**now, **{key: {**before.get(key, {}), **now[key]} for key in ("agents", "scenarios")}}


def _brief(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
