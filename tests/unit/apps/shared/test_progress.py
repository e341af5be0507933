"""Progress without a terminal: a line at most every 20 seconds."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from hamr.apps.shared.progress import progress


def set_times(monkeypatch: pytest.MonkeyPatch, *times: float) -> None:
    at = iter(times)
    monkeypatch.setattr("hamr.apps.shared.progress.time", SimpleNamespace(monotonic=lambda: next(at)))


def test_progress_without_terminal_prints_a_line_every_20_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    set_times(monkeypatch, 0.0, 5.0, 30.0, 30.0, 31.0)
    with progress({"held": 10, "judged": 10}, Console(file=screen, width=100), "dialogues") as report:
        for name, done in (("judged", 5), ("held", 6), ("held", 6), ("judged", 6)):
            report(name, done)
    [line] = screen.getvalue().splitlines()
    assert line == "dialogues: held 6 of 10, judged 5 of 10, about 30.0 s left"


def test_share_counts_what_an_earlier_call_did_and_the_rate_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=100)
    set_times(monkeypatch, 0.0, 1.0, 40.0, 41.0)
    settings = {"begun": 200, "percent": True, "note": lambda seconds: f"{seconds:.0f} seconds"}
    with progress({"input": 1000}, console, "scoring", **settings) as report:
        for done in (300, 600, 700):
            report("input", done)
    set_times(monkeypatch, 0.0, 1.0)
    with progress({"input": 1000}, console, "scoring") as silent:
        silent("input", 10)
    # 400 bytes in 40 s, 400 bytes left.
    assert screen.getvalue() == "scoring: 60.0% of the input, 40 seconds, about 40.0 s left\n"
