"""Plots shared by several pages of a run's report: bars by stage, lines over steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hamr.apps.report.data import STAGE_NAMES, ReportData
from hamr.report.plot_kit import BLUE, GREY, HALF, INK, MUTED, SKY, axes, legend, log_axis, step_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STAGE_COLOURS = {"base": GREY, "sft": SKY, "rl": BLUE}


def grouped_bars(
    data: ReportData, groups: dict[str, dict[str, float | None]], size: tuple[float, float], label: str = "{:.2f}"
) -> tuple[Figure, Axes]:
    """Draw groups[group][stage] as bars, each with its value above it."""
    figure, ax = axes(size)
    stages = list(data.stages)
    width = 0.8 / len(stages)
    for i, stage in enumerate(stages):
        known = [(x, h) for x, g in enumerate(groups.values()) if (h := g.get(stage)) is not None]
        at = [x + (i - (len(stages) - 1) / 2) * width for x, _ in known]
        heights = [h for _, h in known]
        bars = ax.bar(at, heights, width * 0.92, color=STAGE_COLOURS[stage], label=STAGE_NAMES[stage])
        ax.bar_label(bars, fmt=label.format, padding=2, fontsize=8, color=MUTED)
    ax.set_xticks(range(len(groups)), [g.replace("_", " ") for g in groups])
    ax.tick_params(axis="x", length=0, labelcolor=INK)
    ax.axhline(0, color="#cbd2d9", lw=0.8)
    ax.margins(y=0.14)
    legend(ax)
    return figure, ax


def lines(
    data: ReportData, keys: dict[str, tuple[str, str]], ylabel: str, *, log: bool = False, stage: str = "rl"
) -> Figure | None:
    """Draw one line per metric; keys: metric -> (label, colour)."""
    known = [(data.series(key, stage), *look) for key, look in keys.items()]
    known = [k for k in known if k[0][0]]
    if not known:
        return None
    figure, ax = axes(HALF)
    for (steps, values), label, colour in known:
        ax.plot(steps, values, color=colour, label=label, marker="o" if len(steps) < 3 else None, ms=5)
    log = log and all(v > 0 for (_, values), _, _ in known for v in values)
    if log:
        log_axis(ax)
    ax.set_ylabel(ylabel)
    step_axis(ax)
    if len(known) > 1:
        legend(ax)
    return figure
