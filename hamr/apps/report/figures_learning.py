"""Figures of learning progress: the learning curve, held-out metrics before and after, and scorer quality.

Each function maps `ReportData` to a Figure, or to None where there is nothing to show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hamr.apps.report.data import STAGE_NAMES, ReportData
from hamr.report.drawing import (
    AXIS,
    BLUE,
    GREEN,
    GREY,
    HALF,
    INK,
    MUTED,
    ORANGE,
    RED,
    SKY,
    TEXT,
    WIDE,
    Bar,
    axes,
    grouped_bars,
    legend,
    percent,
    step_axis,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STAGE_COLOURS = {"base": GREY, "sft": SKY, "rl": BLUE}


def smooth(values: Sequence[float], weight: float = 0.75) -> list[float]:
    """Return the exponential moving average with bias correction; the first value is unchanged.

    >>> smooth([1.0, 3.0], weight=0.5)
    [1.0, 2.3333333333333335]
    """
    out, total, mass = [], 0.0, 0.0
    for v in values:
        total = weight * total + (1 - weight) * v
        mass = weight * mass + (1 - weight)
        out.append(total / mass)
    return out


def learning_curve(data: ReportData) -> Figure | None:
    steps, mean = data.series("reward/total/mean")
    if not steps:
        return None
    figure, ax = axes(WIDE)
    for low, high, alpha, label in (("min", "max", 0.10, "lowest to highest"), ("p10", "p90", 0.16, "middle 80 %")):
        xs, lows = data.series(f"reward/total/{low}")
        highs = dict(zip(*data.series(f"reward/total/{high}"), strict=True))
        kept = [(x, v, highs[x]) for x, v in zip(xs, lows, strict=True) if x in highs]
        if kept:
            at, bottom, top = ([k[i] for k in kept] for i in range(3))
            ax.fill_between(at, bottom, top, color=BLUE, alpha=alpha, lw=0, label=label)
    ax.plot(steps, mean, color=BLUE, lw=1.0, alpha=0.65, label="mean of the step")
    ax.plot(steps, smooth(mean), color=BLUE, lw=2.8, label="smoothed")
    _audited_curve(data, ax)
    held = held_out_curve(data)
    if held:
        ax.plot(*zip(*held, strict=True), color=RED, marker="o", ms=6, lw=1.6, ls=(0, (4, 2)), label="held out")
    ax.set_ylabel("total reward")
    step_axis(ax)
    _truth_curve(data, ax)
    legend(ax, ncols=3)
    return figure


def _audited_curve(data: ReportData, ax: Axes) -> None:
    """Draw the mean reward that audits correct, with its interval, over the last 2,000 responses."""
    steps, mean = data.series("audit/total_debiased/mean")
    if not steps:
        return
    low, high = (dict(zip(*data.series(f"audit/total_debiased/{end}"), strict=True)) for end in ("low", "high"))
    ax.fill_between(steps, [low[x] for x in steps], [high[x] for x in steps], color=ORANGE, alpha=0.16, lw=0)
    ax.plot(steps, mean, color=ORANGE, lw=1.8, label="corrected by audits (95 %)")


def _truth_curve(data: ReportData, ax: Axes) -> None:
    """Draw the share of exact acts in the same axes, on a separate scale at the right."""
    steps, share = data.series("truth/exact_act")
    if not steps:
        return
    right = ax.twinx()
    right.plot(steps, smooth(share), color=GREEN, lw=2.4)
    ax.plot([], [], color=GREEN, lw=2.4, label="exact acts by rule (right scale)")
    if held := held_out_curve(data, "exact_act"):
        look: dict[str, Any] = {"color": GREEN, "marker": "s", "ms": 5, "lw": 1.4, "ls": (0, (4, 2))}
        right.plot(*zip(*held, strict=True), **look)
        ax.plot([], [], **look, label="exact acts, held out")
    right.set_ylim(0.0, 1.02)
    right.set_ylabel("exact acts")
    right.spines["right"].set_visible(True)
    right.grid(visible=False)
    percent(right)


def held_out_curve(data: ReportData, figure: str = "reward/total") -> list[tuple[int, float]]:
    """Return (RL step, a held-out metric) at the start of RL, at intermediate evaluations and at the end."""
    points = {}
    for name, (step, figures) in data.evaluations.items():
        value = figures.get(figure)
        if value is None or (name == "base" and "sft" in data.evaluations):
            continue
        points[0 if name in ("base", "sft") else step] = value
    return sorted(points.items()) if len(points) > 1 else []


def held_out(data: ReportData) -> Figure | None:
    names = {
        "exact_act": "exact act",
        "action_accuracy": "right kind",
        "tool_exact_match": "tool call exact",
        "format_error_rate": "format errors",
    }
    by_stage: dict[str, dict[str, Any]] = {
        s: {shown: figures.get(key) for key, shown in names.items()} for s, figures in data.stages.items()
    }
    figure = _bars_by_stage(by_stage, HALF, "{:.0%}")
    if figure is not None:
        percent(figure.axes[0])
    return figure


def rewards(data: ReportData) -> Figure | None:
    by_stage: dict[str, dict[str, Bar | None]] = {}
    for stage, figures in data.stages.items():
        found = figures.get("debiased", {}).items()
        by_audits = {f"{name}, by audits": (own["mean"], own["low"], own["high"]) for name, own in found}
        by_stage[stage] = {**figures.get("reward", {}), **by_audits}
    return _bars_by_stage(by_stage, WIDE, "{:.2f}")


def _bars_by_stage(
    by_stage: Mapping[str, Mapping[str, Bar | None]], size: tuple[float, float], label: str
) -> Figure | None:
    """Draw by_stage[stage][group]; groups without a value are left out."""
    known = {group for values in by_stage.values() for group, value in values.items() if value is not None}
    if not known:
        return None
    series = {
        STAGE_NAMES[stage]: {group: value for group, value in values.items() if group in known}
        for stage, values in by_stage.items()
    }
    figure, ax = grouped_bars(size, series, colours=[STAGE_COLOURS[stage] for stage in by_stage], label=label)
    ax.axhline(0, color=AXIS, lw=0.8)
    ax.margins(y=0.14)
    return figure


def by_act(data: ReportData) -> Figure | None:
    """Draw the share of exact acts with intervals where the truth is known, else the share of the right kind of
    action."""
    truth = any(f.get("exact_by_act") for f in data.stages.values())
    shares = {
        stage: {act: own["share"] for act, own in (figures.get("exact_by_act") or {}).items()}
        if truth
        else figures.get("by_act", {})
        for stage, figures in data.stages.items()
    }
    acts = list(dict.fromkeys(a for own in shares.values() for a in own))
    if len(acts) < 2:
        return None
    figure, ax = axes((HALF[0], max(HALF[1], 1.2 + 0.36 * len(acts))))
    for y, act in enumerate(reversed(acts)):
        known = [(s, own[act]) for s, own in shares.items() if act in own]
        values = [v for _, v in known]
        ax.plot([min(values), max(values)], [y, y], color=AXIS, lw=2.5, zorder=1)
        if truth and known:
            ends = data.stages[known[-1][0]]["exact_by_act"][act]
            ax.plot([ends["low"], ends["high"]], [y - 0.22] * 2, color=STAGE_COLOURS[known[-1][0]], lw=1.4, zorder=1)
        for i, (stage, value) in enumerate(known):
            label = STAGE_NAMES[stage] if y == 0 else None
            ax.scatter(
                value, y, s=90 - 12 * (len(known) - 1 - i), color=STAGE_COLOURS[stage], zorder=2 + i, label=label
            )
    ax.set_yticks(range(len(acts)), [a.replace("_", " ") for a in reversed(acts)])
    ax.tick_params(axis="y", labelcolor=INK)
    ax.set_xlim(-0.03, 1.03)
    ax.set_ylim(-0.6, len(acts) - 0.4)
    ax.grid(axis="x")
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("exact act (thin line: 95 % interval of the last stage)" if truth else "right kind of action")
    percent(ax, x=True)
    legend(ax)
    return figure


def scorer_auc(data: ReportData) -> Figure | None:
    rows = [
        (f"{scorer}: {kind.replace('_', ' ')}", auc, check.get("word_overlap_auc", {}).get(kind))
        for scorer, check in (data.summary.get("scorers") or {}).items()
        for kind, auc in (check.get("auc") or {}).items()
        if auc is not None
    ]
    if not rows:
        return None
    figure, ax = axes((HALF[0], 1.3 + 0.5 * len(rows)))
    for y, (_, auc, words) in enumerate(reversed(rows)):
        ax.plot([0.5, auc], [y, y], color=AXIS, lw=2.5, zorder=1)
        ax.scatter(auc, y, s=90, color=BLUE, zorder=3, label="scorer" if y == 0 else None)
        ax.annotate(f"{auc:.2f}", (auc, y), (0, 8), textcoords="offset points", ha="center", fontsize=TEXT)
        if words is not None:
            ax.scatter(words, y, s=60, marker="D", color=ORANGE, zorder=2, label="word overlap" if y == 0 else None)
    ax.axvline(0.5, color=MUTED, lw=1.0, ls=":")
    ax.set_yticks(range(len(rows)), [name for name, _, _ in reversed(rows)])
    ax.tick_params(axis="y", labelcolor=INK)
    ax.set_ylim(-0.6, len(rows) - 0.3)
    ax.set_xlim(min(0.3, *(min(a, w if w is not None else a) - 0.05 for _, a, w in rows)), 1.03)
    ax.grid(axis="y", visible=False)
    ax.set_xlabel("AUC (dotted: chance)")
    legend(ax)
    return figure
