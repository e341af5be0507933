"""Two pictures: every ordering with its interval, and the entropy of RL with one reference and with several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from ablation.tables import TABLES, Claim
from hamr.observability.plot_kit import BLUE, GREEN, GREY, INK, ORANGE, RED, STYLE, axes, legend, step_axis

_KEY = """difference: ours with its 95 % interval, the paper's as a diamond; green: the paper's ordering is reproduced,
red: contradicted, grey: not decided, or a control of ours"""
COLOURS = {"reproduced": GREEN, "contradicted": RED, "not decided": GREY, None: GREY}
CURVES = {"ours": ("single GT", ORANGE), "multi_gt": ("multi GT", BLUE)}


def draw_orderings(path: Path, claims: Sequence[Claim]) -> bool:
    """A panel a table, by its first measure: our difference with its interval, the paper's as a diamond. Whether there
    was anything to draw."""
    panels = []
    for table in TABLES:
        first = next(iter(table.stands_for.values()))[0]
        rows = [c for c in claims if c.table == table.name and c.measure == first and c.difference.mean is not None]
        if rows:
            panels.append((table, rows))
    if not panels:
        return False
    with matplotlib.rc_context({**STYLE, "axes.grid.axis": "x"}):
        heights = [len(rows) + 1.2 for _, rows in panels]
        figure = Figure(figsize=(8.6, 0.42 * sum(heights) + 0.9))
        found = figure.subplots(len(panels), 1, height_ratios=heights, squeeze=False)[:, 0]
        for ax, (table, rows) in zip(found, panels, strict=True):
            for y, c in enumerate(rows):
                _point(ax, y, c)
            ax.axvline(0, color=INK, lw=0.8)
            ax.set_yticks(range(len(rows)), [f"{c.row} − {c.than.replace('_', ' ')}" for c in rows])
            ax.set_ylim(len(rows) - 0.4, -0.6)
            ax.set_title(f"{table.title} ({rows[0].metric})", fontsize=10, loc="left")
        figure.supxlabel(_KEY, fontsize=9)
        figure.savefig(path)
    return True


def _point(ax: matplotlib.axes.Axes, y: int, c: Claim) -> None:
    colour = COLOURS[c.verdict]
    if c.difference.low is not None:
        ax.plot([c.difference.low, c.difference.high], [y, y], color=colour, lw=2.5)
    ax.plot([c.difference.mean], [y], "o", color=colour, ms=6)
    if c.paper is not None:
        ax.plot([c.paper[0] - c.paper[1]], [y], "D", mfc="none", mec=INK, ms=6)


def draw_entropy(path: Path, curves: Mapping[str, Mapping[int, Sequence[float]]]) -> bool:
    """A thin line a seed. Whether there was anything to draw."""
    if not any(curves.values()):
        return False
    with matplotlib.rc_context(STYLE):
        figure, ax = axes((5.6, 3.3))
        for arm, (label, colour) in CURVES.items():
            for i, curve in enumerate(curves.get(arm, {}).values()):
                ax.plot(range(1, len(curve) + 1), curve, color=colour, lw=1.4, label=label if i == 0 else None)
        ax.set_ylabel("nats per token")
        step_axis(ax)
        legend(ax)
        figure.savefig(path)
    return True
