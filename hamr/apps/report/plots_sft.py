"""Plots of supervised fine-tuning: each set's validation loss, and the loss by part of a target.

Each function maps `ReportData` to a Figure, or to None where there is nothing to show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hamr.apps.report.data import ReportData
from hamr.apps.report.stage_plots import lines
from hamr.report.plot_kit import BLUE, CYCLE, GREY, HALF, axes, legend, step_axis

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
    legend(ax, ncols=2)
    return figure


def loss_by_part(data: ReportData) -> Figure | None:
    """Draw bars of the last validation: one group per part, one bar per set that has it."""
    last: dict[str, dict[str, float]] = {}
    for name in validated_sets(data):
        for part in PARTS:
            _, values = data.series(f"{PREFIX}{name}/{part}", "validation")
            if values:
                last.setdefault(part, {})[name] = values[-1]
    if not any(len(parts) for parts in last.values()) or len(last) < 2:
        return None
    figure, ax = axes(HALF)
    names = validated_sets(data)
    width = 0.8 / len(names)
    for i, (name, colour) in enumerate(zip(names, (*CYCLE, *CYCLE), strict=False)):
        rows = [(x, part[name]) for x, part in enumerate(last.values()) if name in part]
        at = [x + (i - (len(names) - 1) / 2) * width for x, _ in rows]
        ax.bar(at, [height for _, height in rows], width * 0.92, color=colour, label=name)
    ax.set_xticks(range(len(last)), [part.replace("_", " ") for part in last])
    ax.set_ylabel("nats per token")
    legend(ax, ncols=2)
    return figure


def learning_rate(data: ReportData) -> Figure | None:
    if not data.option("sft.sets"):
        return None  # the warm-up of a training run
    return lines(data, {"sft/learning_rate": ("rate", BLUE)}, "learning rate", stage="sft")


def validated_sets(data: ReportData) -> list[str]:
    """Return the names of the sets that have a validation loss, in order of appearance."""
    ending = "/loss"
    keys = data.names(PREFIX, "validation")
    return [k.removeprefix(PREFIX).removesuffix(ending) for k in keys if k.endswith(ending)]


def sft_verdict(data: ReportData) -> str | None:
    """Return the result of a `hamr sft` run in a sentence; None for another kind of run."""
    if not data.option("sft.sets"):
        return None
    done = len(data.steps.get("sft", ()))
    said = []
    for name in validated_sets(data):
        _, values = data.series(f"{PREFIX}{name}/loss", "validation")
        if values:
            said.append(f"{name} from {values[0]:.3f} to {values[-1]:.3f}")
    losses = f"validation loss, nats per token: {', '.join(said)}" if said else "nothing was validated"
    return f"{done} steps; {losses}."
