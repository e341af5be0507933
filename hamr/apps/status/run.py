"""`hamr status`: the state of a run."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from hamr.apps.status.overview import overview_lines
from hamr.telemetry.live import LiveStatus, find_run

WATCH_S = 2.0


def show_status(run: str, *, watch: bool) -> int:
    """Print the state of a run once, or until it is over."""
    folder = find_run(run)
    if not watch or not LiveStatus.is_alive(folder):
        print("\n".join(overview_lines(folder)))
        return 0
    with Live(_render(folder), console=Console(highlight=False), auto_refresh=False) as live:
        while LiveStatus.is_alive(folder):
            time.sleep(WATCH_S)
            live.update(_render(folder), refresh=True)
    return 0


def _render(folder: Path) -> Group:
    return Group(*(Text(line, no_wrap=True) for line in overview_lines(folder)))
