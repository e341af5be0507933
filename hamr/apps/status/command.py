"""`hamr status`: the state of a run."""

from __future__ import annotations

import time

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from hamr.apps.status.overview import Overview, overview, overview_lines
from hamr.errors import BadInput
from hamr.telemetry.live import find_run

HELP = "shows the state of a run: its pools, their load, step, reward, pace and estimated end"

WATCH_S = 2.0


def main(args: list[str]) -> int:
    """Run `hamr status <run> [--watch]`, where <run> is a run folder or its name under `runs/`.

    All information comes from the run folder: a running job writes its status and that of its pools there every second.
    No address or token is needed, and a finished run can be inspected, too. `--watch` refreshes the output until the
    run is over or Ctrl-C.

    Per pool: running replicas (and their target number), pending requests, latency of the last requests (median and
    99th percentile, in queue and in service), requests answered so far, and the state of the circuit breaker.
    """
    watch = "--watch" in args
    runs = [arg for arg in args if arg != "--watch"]
    if len(runs) != 1 or runs[0].startswith("-"):
        raise BadInput("run", " ".join(runs) or None, "name one run: hamr status <run> [--watch]")
    folder = find_run(runs[0])
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
