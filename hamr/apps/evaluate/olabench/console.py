"""Console output of an OlaBench evaluation: progress and the final tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from hamr.apps.evaluate.ecs.console import Report
from hamr.apps.evaluate.ecs.console import progress as bars

GRADES = {"dialogue": "dialogue", "policy": "policy", "tool": "tools"}
SHORT = {"hallucination": "halluc."}
"""Abbreviations, so that eight columns fit."""
GROUPS = ("all", "rag", "workflow", "agent", "core", "risk", "hallucination")


@contextmanager
def progress(totals: Mapping[str, int], what: str, console: Console) -> Iterator[Report]:
    """Show a bar per participant with remaining work; nothing where no work remains."""
    if not totals:
        yield lambda name, done: None
        return
    with bars(totals, console, what=what) as report:
        yield report


def tables(metrics: Mapping[str, Any]) -> list[Table]:
    """Return tables of each policy, its latency and its types, then of the judges; each fits into 80 columns."""
    found = []
    for name, groups in metrics["policies"].items():
        found += [_policy(name, groups), _latency(name, groups)]
        types = _types(name, groups["all"])
        if types.row_count:
            found.append(types)
    for file, judges in metrics["grading"].items():
        found += [_detection(file, judges), _agreement(file, judges)]
    return [table for table in found if table.row_count]


def figure(estimate: Mapping[str, Any], form: str = "{:.2f}", scale: float = 1.0, ends: str = "") -> str:
    """Format a mean above its interval; `ends` formats the bounds if given. "-" where there is no value."""
    mean = mean_of(estimate, form, scale)
    if estimate["low"] is None:
        return mean
    low, high = ((ends or form).format(scale * estimate[end]) for end in ("low", "high"))
    return f"{mean}\n{low}-{high}"


def mean_of(estimate: Mapping[str, Any], form: str = "{:.2f}", scale: float = 1.0) -> str:
    return "-" if estimate["mean"] is None else form.format(scale * estimate["mean"])


def share(estimate: Mapping[str, Any]) -> str:
    return figure(estimate, "{:.1f}", 100.0, ends="{:.0f}")


def _policy(name: str, groups: Mapping[str, Any]) -> Table:
    table = _table(f"OlaBench: {name}", "", ["n", *GRADES.values(), "risk %", "halluc. %", "overall"])
    for group in (g for g in GROUPS if g in groups):
        found = groups[group]
        grades = [figure(found["grades"][grade], ends="{:.1f}") for grade in GRADES]
        rates = [share(found[rate]["rate"]) for rate in ("risk", "hallucination")]
        table.add_row(
            SHORT.get(group, group),
            str(found["items"]),
            *grades,
            *rates,
            figure(found["overall"], "{:.1f}", ends="{:.0f}"),
        )
    return table


def _latency(name: str, groups: Mapping[str, Any]) -> Table:
    headings = ["mean s", "median", "95 %", "tokens", "CoT", "malformed", "cut", "failed"]
    table = _table(f"{name}: responses", "", headings)
    for group in (g for g in ("all", "rag", "workflow", "agent") if g in groups):
        latency, counts = groups[group]["latency"], groups[group]["responses"]
        table.add_row(
            group,
            mean_of(latency["seconds"]),
            _number(latency["median_s"]),
            _number(latency["p95_s"]),
            mean_of(latency["response_tokens"], "{:.0f}"),
            mean_of(latency["cot_tokens"], "{:.0f}"),
            *(str(counts[key]) for key in ("malformed", "cut_off", "failed")),
        )
    return table


def _types(name: str, group: Mapping[str, Any]) -> Table:
    table = _table(f"{name}: types", "type", ["share %", "judged"])
    for rate in ("risk", "hallucination"):
        for kind, estimate in group[rate]["types"].items():
            if estimate["n"]:
                table.add_row(f"{rate}: {kind}", share(estimate), str(estimate["n"]))
    return table


def _detection(file: str, judges: Mapping[str, Any]) -> Table:
    table = _table(f"judges on {file}", "known label", ["precision %", "recall %", "n"])
    for judge, found in judges.items():
        kinds = {"any": found["any"], **found["types"]} if "any" in found else {}
        for kind, entry in kinds.items():
            precision = share(entry["precision"]) if entry["precision"] else "-"
            table.add_row(f"{judge}: {kind}", precision, share(entry["recall"]), str(entry["recall"]["n"]))
    return table


def _agreement(file: str, judges: Mapping[str, Any]) -> Table:
    table = _table(f"agreement on {file}", "judge", ["accuracy %", "exact label %", "Spearman", "asked", "missing"])
    for judge, found in judges.items():
        counts = [str(found["asked"]), str(found["missing"])]
        if "accuracy" in found:
            table.add_row(
                judge, share(found["accuracy"]), share(found["exact"]) if "exact" in found else "-", "-", *counts
            )
        for part in ("grades", "good"):
            if part in found:
                rho = {**found[part]["spearman"], "mean": found[part]["spearman"]["rho"]}
                table.add_row(f"{judge} ({part})", share(found[part]["accuracy"]), "-", figure(rho), *counts)
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _table(title: str, first: str, headings: list[str]) -> Table:
    table = Table(first, title=title, box=SIMPLE_HEAD)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table
