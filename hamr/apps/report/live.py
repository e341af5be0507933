"""Live report.html of a running run, rewritten by a separate process so that no step waits for a plot.

`python -m hamr.apps.report.live FOLDER` rewrites the page until its standard input ends.
"""

from __future__ import annotations

import contextlib
import os
import select
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from hamr import signals
from hamr.errors import HamrError
from hamr.files import write_atomic
from hamr.report.html import RELOAD
from hamr.telemetry.run_folder import RunFolder

INTERVAL_S = 12.0
"""Polling interval in seconds. Including the drawing time, the page is at most 15 s behind the run's files."""
NICENESS = 10


@contextlib.contextmanager
def live_report(folder: RunFolder) -> Iterator[None]:
    """Keep `folder.report` up to date, with automatic reload in a browser, while the body runs.

    The page keeps its last state at the end; `write_report` writes the final one. The writer process ends with this
    process in all cases.
    """
    command = [sys.executable, "-m", "hamr.apps.report.live", str(folder.path)]
    writer = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        with signals.cleaned_up(lambda: end_reload(folder.report)):
            yield
    finally:
        writer.kill()
        writer.wait()
        assert writer.stdin is not None
        writer.stdin.close()
        with contextlib.suppress(OSError):  # a full disk, which the run reports
            end_reload(folder.report)


def end_reload(report: Path) -> None:
    """Remove the automatic reload from a written page."""
    if report.is_file():
        text = report.read_text()
        if RELOAD in text:
            write_atomic(report, text.replace(RELOAD, ""))


def rewrite_until_closed(path: Path, interval_s: float = INTERVAL_S) -> None:
    """Rewrite the page whenever the run's figures have changed, until standard input ends."""
    from hamr.apps.report.report import write_report

    files = [path / name for name in ("metrics.jsonl", "samples.jsonl", "status.json")]
    seen: list[int] | None = None
    while True:
        now = [file.stat().st_size if file.is_file() else 0 for file in files]
        if now != seen:
            # A partially written file or a locked ledger: retry at the next poll.
            with contextlib.suppress(HamrError, OSError, ValueError, sqlite3.Error):
                write_report(path, live=True)
                seen = now
        if select.select([sys.stdin], [], [], interval_s)[0]:
            return end_reload(path / "report.html")


if __name__ == "__main__":
    os.nice(NICENESS)
    rewrite_until_closed(Path(sys.argv[1]))
