"""Whole dialogues in a run's report: SAGE evaluations of the policy (`experiment.sage`), and RL on dialogues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hamr.apps.report.data import STAGE_NAMES, ReportData
from hamr.apps.report.figures_learning import held_out_curve, smooth
from hamr.report.drawing import BLUE, GREEN, ORANGE, RED, WIDE, axes, legend, percent
from hamr.report.values import Cell, Column, Parts, Prose, Table
from hamr.telemetry.recorder import show_response
from hamr.types import Failure

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


def completion_curve(data: ReportData) -> Figure | None:
    """Draw the share of completed cases in RL on dialogues."""
    held_out = held_out_curve(data, "episodes/completion")
    steps, completed = data.series("episodes/component/completion")
    if not held_out and not steps:
        return None
    figure, ax = axes(WIDE)
    ax.plot(steps, smooth(completed), color=BLUE, label="training customers")
    if held_out:
        ax.plot(*zip(*held_out, strict=True), color=ORANGE, marker="o", ms=5, label="held-out customers")
    ax.set_xlabel("RL step")
    percent(ax)
    legend(ax, ncols=2)
    return figure


def episode_table(data: ReportData) -> Table:
    """Return held-out figures of RL on dialogues, a row for each stage."""
    columns = {
        "n": ("dialogues", "{:.0f}"),
        "completion": ("completed", "{:.1%}"),
        "exact_act": ("exact turns", "{:.1%}"),
        "turn_reward": ("reward of a turn", "{:.2f}"),
        "reward": ("of the dialogue", "{:.2f}"),
        "turns": ("turns", "{:.1f}"),
        "failed_frac": ("failed", "{:.1%}"),
    }
    rows = tuple(
        (stage_name(stage), *(figures.get(f"episodes/{name}") for name in columns))
        for stage, (_, figures) in data.evaluations.items()
        if "episodes/n" in figures
    )
    return Table("", (Column("stage"), *(Column(title, form) for title, form in columns.values())), rows)


def episode_turns(data: ReportData) -> Table:
    """Return the dialogues of `data.dialogues`, a row for each turn and one for the end."""
    rows: list[tuple[Cell, ...]] = []
    for number, turns in enumerate(data.dialogues, start=1):
        for record in turns:
            parts = {c.name: c.value for c in record.components if c.weight and c.value is not None}
            total = record.total.kind.replace("_", " ") if isinstance(record.total, Failure) else record.total.value
            reply = show_response(record)
            rows.append((number, Prose(record.observation or ""), Prose(reply or "(blank)"), total, Parts(parts, "")))
            if record.episode is not None:
                end = {c.name: c.value for c in record.episode.components if c.weight}
                how = record.episode.outcome.replace("_", " ")
                rows.append((number, Prose(""), Prose(f"({how})"), record.episode.reward, Parts(end, "")))
    names = (Column("dialogue", "{}"), Column("customer or tool"), Column("policy"), Column("reward", "{:.2f}"))
    return Table("", (*names, Column("components")), tuple(rows))


def stage_name(stage: str) -> str:
    """Return the display name of a stage.

    >>> stage_name("sft"), stage_name("rl-4")
    ('after SFT', 'RL step 4')
    """
    return STAGE_NAMES.get(stage, stage.replace("rl-", "RL step "))
