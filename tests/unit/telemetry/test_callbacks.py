"""Callbacks of a run: their arguments, their order, and failures that do not end the run."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hamr.security.functions import FunctionSource, LoadedFunction, load_function
from hamr.telemetry import callbacks
from hamr.telemetry.callbacks import Callbacks
from hamr.telemetry.recorder import RunRecorder
from hamr.telemetry.run_folder import RunFolder


def functions(**calls: Callable[..., Any]) -> dict[str, LoadedFunction]:
    source = FunctionSource(key="logging.callbacks.on_step_end.path", path="my.py:f")
    return {name: LoadedFunction(source=source, call=call, sha256=None) for name, call in calls.items()}


def test_recorder_calls_after_each_step_and_evaluation(tmp_path: Path) -> None:
    seen: list[Any] = []
    made = functions(on_step_end=lambda *given: seen.append(given), on_evaluation_end=lambda *given: seen.append(given))
    folder = RunFolder.create(tmp_path / "run", "")
    with RunRecorder(folder, callbacks=Callbacks(made, pytest.fail)) as recorder:
        recorder.begin("rl", 2)
        recorder.metrics(1, {"reward/total/mean": 0.5})
        recorder.evaluation("rl-1", 1, {"eval/rl-1/exact_act": 0.25})
        recorder.metrics(2, {"reward/total/mean": 0.25})
    (_, _, first), evaluation, (_, _, second) = seen
    assert [given[:2] for given in seen] == [("rl", 1), ("rl-1", 1), ("rl", 2)]
    assert (first["reward/total/mean"], second["reward/total/mean"]) == (0.5, 0.25)
    assert evaluation[2:] == ({"eval/rl-1/exact_act": 0.25}, ())


def test_async_callback_runs_to_its_end() -> None:
    seen: list[Any] = []

    async def save(stage: str, step: int, metrics: dict[str, float]) -> None:
        await asyncio.sleep(0)
        seen.append((stage, step))
        if step == 2:
            raise ValueError("full")

    notes: list[str] = []
    made = Callbacks(functions(on_step_end=save), notes.append)
    for step in (1, 2):
        made.call("on_step_end", "rl", step, {})
    made.close()
    assert seen == [("rl", 1), ("rl", 2)] and notes == ["logging.callbacks.on_step_end: raised ValueError: full"]


def test_files_of_two_folders_import_their_own_helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    loaded = []
    for number, folder in enumerate((tmp_path / "a", tmp_path / "b")):
        (folder / "parts").mkdir(parents=True)
        (folder / "helper.py").write_text(f"NUMBER = {number}\n")
        (folder / "parts" / "words.py").write_text(f"WORD = 'word {number}'\n")
        (folder / "mine.py").write_text(
            "from helper import NUMBER\nfrom parts.words import WORD\n\n\ndef get():\n    return NUMBER, WORD\n"
        )
        key = f"logging.callbacks.on_{number}.path"
        loaded.append(load_function(FunctionSource(key=key, path=f"{folder}/mine.py:get").with_text(), ()))
    assert [function() for function in loaded] == [(0, "word 0"), (1, "word 1")]
    for name in ("helper", "parts", "parts.words"):
        sys.modules.pop(name, None)


def test_raising_callback_is_reported_once_and_called_again() -> None:
    seen: list[int] = []
    notes: list[str] = []

    def fail(stage: str, step: int, metrics: dict[str, float]) -> None:
        seen.append(step)
        raise KeyError("lost")

    made = Callbacks(functions(on_step_end=fail), notes.append)
    for step in (1, 2, 3):
        made.call("on_step_end", "rl", step, {})
    made.call("on_evaluation_end", "rl", 3, {}, ())
    made.close()
    assert seen == [1, 2, 3]
    assert notes == ["logging.callbacks.on_step_end: raised KeyError: 'lost'"]


def test_callback_that_never_returns_does_not_keep_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "LAST_CALLS_S", 0.01)
    forever, notes = threading.Event(), list[str]()
    made = Callbacks(functions(on_step_end=lambda *given: forever.wait()), notes.append)
    made.call("on_step_end", "rl", 1, {})
    made.close()
    assert notes == ["logging.callbacks: a call has not returned within 0.01 s of the run's end and is dropped"]
    forever.set()
