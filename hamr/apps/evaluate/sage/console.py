"""Console output of a SAGE evaluation: progress and the final tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table

from hamr.bench.sage.run import DialogueProgress, Report
from hamr.telemetry.console import duration

NEWS_S = 20.0
"""Seconds between progress lines where the output is not a terminal."""


@contextmanager
def progress(total: int, console: Console) -> Iterator[Report]:
    """Show two bars, dialogues held and dialogues judged; plain lines without a terminal."""
    if not console.is_terminal:
        yield lines(console)
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

        def report(now: DialogueProgress) -> None:
            bars.update(held, completed=now.held)
            bars.update(judged, completed=now.judged)

        yield report


def lines(console: Console, clock: Callable[[], float] = time.monotonic) -> Report:
    """Print the progress at most once in `NEWS_S`."""
    started = said = clock()

    def report(now: DialogueProgress) -> None:
        nonlocal said
        at = clock()
        if at - said < NEWS_S or not now.judged:
            return
        said = at
        left = (at - started) * (now.total - now.judged) / now.judged
        counts = f"{now.held} of {now.total} dialogues held, {now.judged} judged"
        console.print(f"{counts}, about {duration(left)} left", highlight=False)

    return report


def tables(summary: Mapping[str, Any]) -> list[Table]:
    """Return the paper's Table 1 in parts that fit into 80 columns.

    The means of the scenarios, the parts of logic, the judge-free metrics, and every scenario's overall score.
    """
    codes = _codes(summary)
    each = _table("SAGE: overall by scenario", codes.values())
    for agent, result in summary["agents"].items():
        each.add_row(agent, *(_mean(result["scenarios"][name]["figures"]["overall"]) for name in codes))
    means = ("overall", "logic", "chat", "unreadable", "chat_length")
    parts = ("classification", "path", "action", "format_error")
    case = ("truth", "truth_action", "judges_right")
    return [
        _averages(summary, "SAGE: means of the scenarios", means, ("overall", "logic", "chat", "unread %", "words")),
        _averages(summary, "SAGE: parts of logic", parts, ("labels", "path", "action", "faulty %")),
        _averages(summary, "SAGE: by the customers' own cases", case, ("logic", "action", "judges right")),
        each,
    ]


def _averages(summary: Mapping[str, Any], title: str, names: Sequence[str], headings: Sequence[str]) -> Table:
    shown = _table(title, headings)
    for agent, result in summary["agents"].items():
        shown.add_row(agent, *(_mean(result["average"][name]) for name in names))
    return shown


def _table(title: str, headings: Iterable[str]) -> Table:
    table = Table("agent", title=title, box=SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def coverage_table(scenario: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of the paths and the customers sent along each.

    By reason: for their intent, to top up, and along the path that has fewest.
    """
    shown = _table(f"{scenario}: {len(rows)} paths", ("paths", "intent", "top-up", "all", "fewest"))
    shown.columns[0].header = "route"
    routes: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        stages, action = row["route"]
        routes.setdefault(" ".join([*(s.removeprefix("stage") for s in stages), action]), []).append(row)
    for route, taken in routes.items():
        intent, top_up = sum(row["by_intent"] for row in taken), sum(row["by_path"] for row in taken)
        fewest = min(row["by_intent"] + row["by_path"] for row in taken)
        shown.add_row(route, *map(str, (len(taken), intent, top_up, intent + top_up, fewest)))
    return shown


def _mean(figure: Mapping[str, float | None]) -> str:
    value = figure["mean"]
    return "-" if value is None else f"{value:.1f}"


def _codes(summary: Mapping[str, Any]) -> dict[str, str]:
    first = next(iter(summary["agents"].values()))
    return {name: entry["code"] for name, entry in first["scenarios"].items()}
