"""Whole dialogues with the policy (`experiment.sage`) in a run's report: a curve and a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hamr.apps.report.data import STAGE_NAMES, ReportData
from hamr.report.drawing import BLUE, GREEN, ORANGE, RED, WIDE, axes, legend
from hamr.report.values import Column, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PREFIX = "sage/"
COLUMNS = {
    "dialogues": "dialogues",
    "truth": "logic, own case",
    "truth_action": "action, own case",
    "judges_right": "judges right",
    "logic": "logic",
    "chat": "chat",
    "classification": "labels",
    "path": "path",
    "action": "action",
    "unreadable": "unreadable %",
    "format_error": "faulty %",
}
CURVES = {"truth": BLUE, "logic": ORANGE, "chat": GREEN, "unreadable": RED}


def dialogue_stages(data: ReportData) -> dict[str, Mapping[str, float]]:
    """Return stage -> SAGE metrics, for the stages that have any, in order."""
    found = {
        stage: {name.removeprefix(PREFIX): value for name, value in figures.items() if name.startswith(PREFIX)}
        for stage, (_, figures) in data.evaluations.items()
    }
    return {stage: figures for stage, figures in found.items() if figures}


def dialogue_table(data: ReportData) -> Table:
    """Return a table with a row for each stage."""
    rows = tuple(
        (stage_name(stage), *(figures.get(name) for name in COLUMNS))
        for stage, figures in dialogue_stages(data).items()
    )
    return Table("", (Column("stage"), *(Column(name, "{:.1f}") for name in COLUMNS.values())), rows)


def dialogue_curve(data: ReportData) -> Figure | None:
    stages = dialogue_stages(data)
    if len(stages) < 2:
        return None
    figure, ax = axes(WIDE)
    for name, colour in CURVES.items():
        known = [(x, figures[name]) for x, figures in enumerate(stages.values()) if name in figures]
        if known:
            dashed = ":" if name == "unreadable" else "-"
            ax.plot(*zip(*known, strict=True), dashed, color=colour, marker="o", ms=5, label=COLUMNS[name])
    ax.set_xticks(range(len(stages)), [stage_name(stage) for stage in stages])
    ax.set_ylim(-3, 103)
    legend(ax, ncols=len(CURVES))
    return figure


def stage_name(stage: str) -> str:
    """Return the display name of a stage.

    >>> stage_name("sft"), stage_name("rl-4")
    ('after SFT', 'RL step 4')
    """
    return STAGE_NAMES.get(stage, stage.replace("rl-", "RL step "))
