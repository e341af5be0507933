"""A SAGE evaluation on the terminal: its progress, and the tables at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table

from hamr.evaluation.sage.run import Progress, Report
from hamr.observability.console import duration

NEWS_S = 20.0
"""Seconds between lines of progress where the output is no terminal."""
MOST_ROWS = 40
"""Of a coverage table on the terminal."""


@contextmanager
def progress(total: int, console: Console) -> Iterator[Report]:
    """Two bars, dialogues held and dialogues judged; plain lines where there is no terminal."""
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console) as bars:
        held, judged = bars.add_task("held", total=total), bars.add_task("judged", total=total)

        def report(now: Progress) -> None:
            bars.update(held, completed=now.held)
            bars.update(judged, completed=now.judged)

        yield report


def _lines(console: Console, clock: Callable[[], float] = time.monotonic) -> Report:
    started = said = clock()

    def report(now: Progress) -> None:
        nonlocal said
        at = clock()
        if at - said < NEWS_S or not now.judged:
            return
        said = at
        left = (at - started) * (now.total - now.judged) / now.judged
        counts = f"{now.held} of {now.total} dialogues held, {now.judged} judged"
        console.print(f"{counts}, about {duration(left)} left", highlight=False)

    return report


def table(summary: Mapping[str, Any]) -> Table:
    """The paper's Table 1: means over scenarios, every scenario's overall score, format errors and chat length."""
    codes = _codes(summary)
    shown = Table(title="SAGE", caption="overall, logic and chat: mean of the scenarios, in [0, 100]")
    shown.add_column("agent")
    for name in ("overall", "logic", "chat", *codes.values(), "unreadable", "faults", "words"):
        shown.add_column(name, justify="right")
    for agent, result in summary["agents"].items():
        average = result["average"]
        cells = [mean(average[name]) for name in ("overall", "logic", "chat")]
        cells += [mean(result["scenarios"][name]["figures"]["overall"]) for name in codes]
        cells += [f"{mean(average[name])}%" for name in ("unreadable", "format_error")]
        shown.add_row(agent, *cells, mean(average["chat_length"]))
    return shown


def coverage_table(scenario: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Every path with how many customers were sent along it, for their intent and to top it up."""
    shown = Table("path", "what the customer is", "intent", "top-up", "all", title=f"{scenario}: {len(rows)} paths")
    for row in rows[:MOST_ROWS]:
        stages, action = row["route"]
        way = " ".join(stage.removeprefix("stage") for stage in stages)
        total = row["by_intent"] + row["by_path"]
        shown.add_row(f"{way} {action}", row["case"], str(row["by_intent"]), str(row["by_path"]), str(total))
    if len(rows) > MOST_ROWS:
        shown.add_row("...", f"{len(rows) - MOST_ROWS} more in metrics.json", "", "", "")
    return shown


def mean(figure: Mapping[str, float | None]) -> str:
    return number(figure["mean"])


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _codes(summary: Mapping[str, Any]) -> dict[str, str]:
    first = next(iter(summary["agents"].values()))
    return {name: entry["code"] for name, entry in first["scenarios"].items()}
