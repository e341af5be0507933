"""Console output of an ECS evaluation: progress and the final tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from hamr.telemetry.console import duration

NEWS_S = 20.0
"""Seconds between progress lines where the output is not a terminal."""

Report = Callable[[str, int], None]
NAMES = {"multi_ecs": "Multi-ECS", "single_ecs": "Single-ECS", "call_tool_accuracy": "call-tool accuracy"}


@contextmanager
def progress(totals: Mapping[str, int], console: Console, *, what: str = "votes") -> Iterator[Report]:
    """Show a bar per judge; plain lines without a terminal."""
    if not console.is_terminal:
        yield _lines(totals, console, what)
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


def _lines(
    totals: Mapping[str, int], console: Console, what: str, clock: Callable[[], float] = time.monotonic
) -> Report:
    started = said = clock()
    held = dict.fromkeys(totals, 0)

    def report(name: str, done: int) -> None:
        nonlocal said
        held[name] = done
        at = clock()
        if at - said < NEWS_S:
            return
        said = at
        # The judges work in parallel, so the slowest one determines the remaining time.
        left = max((at - started) * (total - held[n]) / max(1, held[n]) for n, total in totals.items())
        counts = ", ".join(f"{n} {held[n]} of {total}" for n, total in totals.items())
        console.print(f"{what}: {counts}, about {duration(left)} left", highlight=False)

    return report


def tables(metrics: Mapping[str, Any]) -> list[Table]:
    """Return tables of the policies, their comparison, the judges and their agreement; each fits into 80 columns."""
    return [table for table in (_policies(metrics), _comparison(metrics), _judges(metrics), _people(metrics)) if table]


def _policies(metrics: Mapping[str, Any]) -> Table:
    shown = _table("ECS", "policy", [*NAMES.values(), "samples", "unscored"])
    for name, policy in metrics["policies"].items():
        values = [estimate(policy["values"][value]) for value in NAMES]
        shown.add_row(name, *values, str(policy["samples"]), str(policy["unscored"]))
    return shown


def _comparison(metrics: Mapping[str, Any]) -> Table | None:
    found = metrics["comparison"]
    if found is None:
        return None
    shown = _table(f"{found['a']} minus {found['b']}", "", ["difference", "p", "better", "equal", "worse"])
    for value, name in NAMES.items():
        entry = found[value]
        counts = [str(entry[key]) for key in ("wins", "ties", "losses")]
        shown.add_row(name, estimate(entry["difference"], "{:+.3f}"), number(entry["p_value"], "{:.4f}"), *counts)
    return shown


def _judges(metrics: Mapping[str, Any]) -> Table:
    shown = _table("Judges", "judge", ["asked", "missing", "mean", "kappa with the others"])
    for name, judge in metrics["judges"].items():
        kappas = [p["kappa"] for p in metrics["between_judges"] if name in p["judges"] and p["kappa"] is not None]
        mean = sum(kappas) / len(kappas) if kappas else None
        missing = sum(judge["missing"].values())
        shown.add_row(name, str(judge["asked"]), str(missing), number(judge["mean"]), number(mean))
    return shown


def _people(metrics: Mapping[str, Any]) -> Table | None:
    found = metrics["people"]
    if found is None:
        return None
    title = f"Agreement with people on {found['pairs']} pairs"
    shown = _table(title, "judge", ["accuracy", "clear pairs", "kappa", "Spearman", "missing"])
    for name, entry in [("ensemble", found["ensemble"]), *found["judges"].items()]:
        figures = [estimate(entry["accuracy"]), estimate(entry["clear_accuracy"]), number(entry["kappa"])]
        shown.add_row(name, *figures, number(entry["spearman"]["rho"]), str(entry["missing"]))
    return shown


def estimate(figure: Mapping[str, Any], form: str = "{:.3f}") -> str:
    """Format the mean above its interval.

    >>> estimate({"mean": 0.5, "low": 0.25, "high": 0.75, "n": 8})
    '0.500\\n0.250..0.750'
    """
    if figure["mean"] is None:
        return "-"
    return f"{form.format(figure['mean'])}\n{form.format(figure['low'])}..{form.format(figure['high'])}"


def number(value: float | None, form: str = "{:.3f}") -> str:
    return "-" if value is None else form.format(value)


def _table(title: str, first: str, headings: list[str]) -> Table:
    table = Table(first, title=title, box=SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table
