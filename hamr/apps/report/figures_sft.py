"""Figures of supervised fine-tuning: each set's validation loss, and the loss by part of a target.

Each function maps `ReportData` to a Figure, or to None where there is nothing to show.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hamr.apps.report.data import ReportData
from hamr.apps.report.figures_training import lines
from hamr.report.drawing import BLUE, CYCLE, GREY, HALF, axes, grouped_bars, legend, step_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PREFIX = "eval/validation/"
PARTS = ("rationale", "action", "environment", "next_action")


def validation_loss(data: ReportData) -> Figure | None:
    """Draw a line per set and the training loss, which is measured on other items, batch by batch."""
    known = {name: data.series(f"{PREFIX}{name}/loss", "validation") for name in validated_sets(data)}
    if not known:
        return None
    figure, ax = axes(HALF)
    steps, losses = data.series("sft/loss", "sft")
    ax.plot(steps, losses, color=GREY, lw=1.0, label="training batches")
    for (name, (at, values)), colour in zip(known.items(), (*CYCLE, *CYCLE), strict=False):
        ax.plot(at, values, color=colour, marker="o", ms=5, label=name)
    ax.set_ylabel("nats per token")
    step_axis(ax)
    legend(ax)
    return figure


def loss_by_part(data: ReportData) -> Figure | None:
    """Draw the last validation: one group of bars per part, one bar per set that has it."""
    by_set: dict[str, dict[str, float | None]] = {}
    for part in PARTS:
        for name in validated_sets(data):
            _, values = data.series(f"{PREFIX}{name}/{part}", "validation")
            if values:
                by_set.setdefault(name, {})[part] = values[-1]
    if len({part for values in by_set.values() for part in values}) < 2:
        return None
    figure, ax = grouped_bars(HALF, by_set)
    ax.set_ylabel("nats per token")
    return figure


def learning_rate(data: ReportData) -> Figure | None:
    if not data.option("sft.sets"):
        return None  # the warm-up of a training run
    return lines(data, {"sft/learning_rate": ("rate", BLUE)}, "learning rate", stage="sft")


def validated_sets(data: ReportData) -> list[str]:
    """Return the names of the sets that have a validation loss, in order of appearance."""
    keys = dict.fromkeys(key for row in data.steps.get("validation", ()) for key in row)
    return [m[1] for key in keys if (m := re.fullmatch(f"{PREFIX}(.*)/loss", key))]


def sft_verdict(data: ReportData) -> str | None:
    """Return the result of a `hamr sft` run in a sentence; None for another kind of run."""
    if not data.option("sft.sets"):
        return None
    done = len(data.steps.get("sft", ()))
    changes = []
    for name in validated_sets(data):
        _, values = data.series(f"{PREFIX}{name}/loss", "validation")
        if values:
            changes.append(f"{name} from {values[0]:.3f} to {values[-1]:.3f}")
    losses = f"validation loss, nats per token: {', '.join(changes)}" if changes else "nothing was validated"
    return f"{done} steps; {losses}."
