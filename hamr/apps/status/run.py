"""`hamr status`: the state of a run."""

from __future__ import annotations

import time

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from hamr.apps.status.overview import Overview, overview, overview_lines
from hamr.telemetry.live import find_run

WATCH_S = 2.0


def show_status(run: str, *, watch: bool) -> int:
    """Print the state of a run once, or until it is over."""
    folder = find_run(run)
    seen = overview(folder)
    if not watch or not _alive(seen):
        print("\n".join(overview_lines(seen)))
        return 0
    with Live(_render(seen), console=Console(highlight=False), auto_refresh=False) as live:
        while _alive(seen):
            time.sleep(WATCH_S)
            seen = overview(folder)
            live.update(_render(seen), refresh=True)
    return 0


def _alive(seen: Overview) -> bool:
    return seen.live is not None and seen.live.alive()


def _render(seen: Overview) -> Group:
    return Group(*(Text(line, no_wrap=True) for line in overview_lines(seen)))
