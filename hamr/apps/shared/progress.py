"""Progress of long work: a bar per participant, or plain lines without a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from hamr.telemetry.console import duration

NEWS_S = 20.0
"""Seconds between progress lines where the output is not a terminal."""

Report = Callable[[str, int], None]


@contextmanager
def progress(totals: Mapping[str, int], console: Console, what: str) -> Iterator[Report]:
    """Yield a function that takes the number of units that a participant has done."""
    if not console.is_terminal:
        yield report_lines(totals, console, what)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bars:
        tasks = {name: bars.add_task(name, total=total) for name, total in totals.items()}
        yield lambda name, done: bars.update(tasks[name], completed=done)


def report_lines(
    totals: Mapping[str, int], console: Console, what: str, clock: Callable[[], float] = time.monotonic
) -> Report:
    """Return a function that prints the progress at most once in `NEWS_S`."""
    started = printed = clock()
    counts = dict.fromkeys(totals, 0)

    def report(name: str, done: int) -> None:
        nonlocal printed
        counts[name] = done
        now = clock()
        if now - printed < NEWS_S:
            return
        printed = now
        # The participants work in parallel, so the slowest one determines the remaining time.
        left = max((now - started) * (total - counts[n]) / max(1, counts[n]) for n, total in totals.items())
        text = ", ".join(f"{n} {counts[n]} of {total}" for n, total in totals.items())
        console.print(f"{what}: {text}, about {duration(left)} left", highlight=False)

    return report
