"""Progress of long work: a bar per participant, or plain lines without a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from hamr.telemetry.console import duration

NEWS_S = 20.0
"""Seconds between progress lines where the output is not a terminal."""

Report = Callable[[str, int], None]


@contextmanager
def progress(
    totals: Mapping[str, int],
    console: Console,
    what: str,
    *,
    begun: int = 0,
    percent: bool = False,
    note: Callable[[float], str] = lambda seconds: "",
) -> Iterator[Report]:
    """Yield a function that takes the number of units that a participant has done.

    Args:
        begun: Units that an earlier call did. They count towards the share, but not towards the rate.
        percent: Show the share that is done instead of the numbers of units.
        note: Returns a text about the work, such as its rate, from the seconds since its start.
    """
    started = time.monotonic()
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn() if percent else MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, speed_estimate_period=120.0) as bars:
            tasks = {name: bars.add_task(name, total=total, completed=begun, note="") for name, total in totals.items()}
            yield lambda name, done: bars.update(tasks[name], completed=done, note=note(time.monotonic() - started))
        return
    printed, counts = started, dict.fromkeys(totals, begun)

    def print_line(name: str, done: int) -> None:
        nonlocal printed
        counts[name] = done
        now = time.monotonic()
        if now - printed < NEWS_S:
            return
        printed = now
        # The participants work in parallel, so the slowest one determines the remaining time.
        left = max((now - started) * (total - counts[n]) / max(1, counts[n] - begun) for n, total in totals.items())
        parts = [
            f"{counts[n] / total:.1%} of the {n}" if percent else f"{n} {counts[n]} of {total}"
            for n, total in totals.items()
        ]
        text = ", ".join(filter(None, [*parts, note(now - started)]))
        console.print(f"{what}: {text}, about {duration(left)} left", highlight=False)

    yield print_line
