"""Figures of a SAGE evaluation: scores by turn and by level, single judges, dimensions of chat quality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hamr.bench.sage.assessment import Assessment
from hamr.bench.sage.metrics import VALUES
from hamr.procedures.prompts import DIMENSIONS
from hamr.report.drawing import BLUE, CYCLE, GREEN, HALF, INK, MUTED, ORANGE, TEXT, WIDE, axes, heat_map, legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCORES = {"overall": BLUE, "logic": ORANGE, "chat": GREEN}


def turn_curve(by_turn: Mapping[str, Mapping[str, Mapping[str, float | None]]]) -> Figure | None:
    """Draw by_turn[agent][turn][value]: logic (solid) and chat (dotted) at turns 1, 5, 10, 15 and the last."""
    labels = [turn for turn in ("1", "5", "10", "15", "last") if any(turn in t for t in by_turn.values())]
    if len(labels) < 2:
        return None
    figure, ax = axes(WIDE)
    for (agent, turns), colour in zip(by_turn.items(), CYCLE * len(by_turn), strict=False):
        for value, style in (("logic", "-"), ("chat", ":")):
            known = [(labels.index(t), v[value]) for t, v in turns.items() if v.get(value) is not None]
            if known:
                x, y = zip(*known, strict=True)
                ax.plot(x, y, style, color=colour, marker="o", ms=4, label=f"{agent}, {value}")
    if not ax.lines:
        return None
    ax.set_xticks(range(len(labels)), [t if t == "last" else f"turn {t}" for t in labels])
    ax.set_ylabel("score")
    ax.set_ylim(-3, 103)
    legend(ax, ncols=3)
    return figure


def level_boxes(assessed: Sequence[Assessment], levels: Sequence[str]) -> Figure | None:
    """Draw each dialogue's mean overall, logic and chat score, by adversarial level."""
    groups = {
        (level, value): _dialogue_means([a for a in assessed if a.level == level], value)
        for level in levels
        for value in SCORES
    }
    if not any(groups.values()):
        return None
    figure, ax = axes(HALF)
    for i, (value, colour) in enumerate(SCORES.items()):
        at = [x + (i - 1) * 0.26 for x in range(len(levels))]
        boxes = ax.boxplot(
            [groups[level, value] for level in levels],
            positions=at,
            widths=0.2,
            patch_artist=True,
            manage_ticks=False,
            medianprops={"color": INK},
            whiskerprops={"color": MUTED},
            capprops={"color": MUTED},
            flierprops={"marker": ".", "markersize": 3, "markeredgecolor": MUTED},
        )
        for box in boxes["boxes"]:
            box.set(facecolor=colour, alpha=0.55, edgecolor=colour)
        ax.plot([], [], color=colour, lw=6, alpha=0.55, label=value)
    ax.set_xticks(range(len(levels)), list(levels))
    ax.set_ylim(-3, 103)
    ax.set_ylabel("a dialogue's score")
    legend(ax, ncols=3)
    return figure


def judge_map(judges: Mapping[str, Mapping[str, Mapping[str, float | None]]], value: str) -> Figure | None:
    """Draw judges[agent][judge][value]: each agent's (column) score by every single judge (row), and by all judges."""
    rows = list(dict.fromkeys(name for by_judge in judges.values() for name in by_judge))
    table = np.array([[_float(by_judge.get(name, {}).get(value)) for by_judge in judges.values()] for name in rows])
    if len(rows) < 3 or np.isnan(table).all():
        return None
    names = ["all of them" if name == "panel" else name for name in rows]
    return heat_map(names, [agent.replace(":", ":\n") for agent in judges], table, "{:.1f}", 100)


def dimensions(correlation: Mapping[str, Mapping[str, float | None]]) -> Figure | None:
    """Draw the mean of every dimension of chat quality, with its correlation with the total."""
    known = {name: entry for name, entry in correlation.items() if entry["mean"] is not None}
    if not known:
        return None
    figure, ax = axes(HALF)
    bars = ax.barh(range(len(known)), [_float(entry["mean"]) for entry in known.values()], color=BLUE, height=0.6)
    labels = [f"{e['mean']:.1f}" + (f"   R² {e['r2']:.2f}" if e["r2"] is not None else "") for e in known.values()]
    ax.bar_label(bars, labels, padding=4, fontsize=TEXT, color=MUTED)
    ax.set_yticks(range(len(known)), [f"{name.replace('_', ' ')} ({DIMENSIONS[name]} %)" for name in known])
    ax.tick_params(axis="y", labelcolor=INK)
    ax.invert_yaxis()
    ax.set_xlim(0, 165 if any(e["r2"] is not None for e in known.values()) else 130)
    ax.grid(False)
    ax.set_xticks([0, 50, 100])
    return figure


def _dialogue_means(assessed: Sequence[Assessment], value: str) -> list[float]:
    by_dialogue: dict[tuple[str, str], list[float]] = {}
    for a in assessed:
        if (score := VALUES[value](a)) is not None:
            by_dialogue.setdefault((a.agent, a.dialogue), []).append(score)
    return [sum(scores) / len(scores) for scores in by_dialogue.values()]


def _float(value: float | None) -> float:
    return float("nan") if value is None else value
