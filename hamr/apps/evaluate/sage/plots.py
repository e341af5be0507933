"""Plots of a SAGE evaluation: the graph with the agent's errors, the turns, the levels, the judges."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from hamr.bench.sage.assessment import Assessment
from hamr.procedures.graph import Scenario
from hamr.procedures.prompts import DIMENSIONS
from hamr.procedures.schema import Branch
from hamr.report.plot_kit import BLUE, CYCLE, GREEN, GRID, HALF, INK, MUTED, ORANGE, RED, WIDE, axes, legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LAYER, _SLOT = 2.5, 1.0
"""Inches from column to column, and from row to row."""
_BOX, _TALL = 0.62, 0.33
_BENDS = (0.2, -0.2, 0.12, -0.12, 0.3, -0.3)
"""Candidate bends of an edge over several columns; the one that crosses the fewest boxes is used."""
_POINTS = 41
SCORES = {"overall": BLUE, "logic": ORANGE, "chat": GREEN}


def graph(scenario: Scenario, stages: Mapping[str, Mapping[str, int]], rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw the procedure from left to right.

    A stage is redder the more often the agent left the right path there (or took the wrong action at its end). An
    action shows the number of its customers; a dotted edge had none.
    """
    places = layout(scenario)
    depth = max(x for x, _ in places.values()) + 1
    height = max(y for _, y in places.values()) - min(y for _, y in places.values()) + 1
    figure, ax = axes((max(8.0, _LAYER * depth), max(3.2, _SLOT * height + 0.5)))
    wide, tall = figure.get_size_inches()
    scale = (wide / (depth + 0.2), tall / (height + 0.2))
    sent: Counter[str] = Counter()
    along: Counter[tuple[str, str]] = Counter()
    for row in rows:
        customers = row["by_intent"] + row["by_path"]
        sent[row["route"][1]] += customers
        for step in pairwise((*row["nodes"], row["route"][1])):
            along[step] += customers
    for here, there, data in scenario.graph.edges(data=True):
        label = " or ".join(map(_condition, data["when"]))
        between = [place for node, place in places.items() if node not in (here, there)]
        _edge(ax, places[here], places[there], label, scale, between, covered=along[here, there] > 0)
    for node, (x, y) in places.items():
        if node in scenario.file.actions:
            _box(ax, x, y, _wrap(node), _count_label(sent[node]), "#e3f4ee", GREEN)
            continue
        seen = stages.get(node, {"passed": 0, "wrong": 0})
        share = seen["wrong"] / seen["passed"] if seen["passed"] else 0.0
        said = f"{seen['wrong']} of {seen['passed']} wrong" if seen["passed"] else "not reached"
        title = _wrap(scenario.file.stages[node].title.en)
        _box(ax, x, y, f"{node}\n{title}", said, _shade(share), RED if share else "#9aa5b1")
    ax.set_xlim(-0.6, depth - 0.4)
    ax.set_ylim(min(y for _, y in places.values()) - 0.6, max(y for _, y in places.values()) + 0.6)
    ax.axis("off")
    return figure


def layout(scenario: Scenario) -> dict[str, tuple[float, float]]:
    """Return the (column, row) of every node.

    Columns by the longest path to a node, actions in the column after their last stage; rows by the position of a
    node's predecessors, to reduce crossings.
    """
    import networkx

    depth: dict[str, int] = {}
    for node in networkx.topological_sort(scenario.graph):
        depth[node] = max((depth[before] + 1 for before in scenario.graph.predecessors(node)), default=0)
    columns: dict[int, list[str]] = {}
    for node, column in depth.items():
        columns.setdefault(column, []).append(node)
    places: dict[str, tuple[float, float]] = {}
    for column in sorted(columns):

        def pull(node: str) -> float:
            rows = [places[before][1] for before in scenario.graph.predecessors(node) if before in places]
            return sum(rows) / len(rows) if rows else 0.0

        nodes = sorted(columns[column], key=lambda node: (-pull(node), node))
        for slot, node in enumerate(nodes):
            places[node] = (float(column), (len(nodes) - 1) / 2 - slot)
    return places


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
    legend(ax, ncols=4)
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
            flierprops={"marker": ".", "markersize": 3, "markeredgecolor": MUTED},
        )
        for box in boxes["boxes"]:
            box.set(facecolor=colour, alpha=0.55, edgecolor=colour)
        ax.plot([], [], color=colour, lw=6, alpha=0.55, label=value)
    ax.set_xticks(range(len(levels)), list(levels))
    ax.set_ylim(-3, 103)
    ax.set_ylabel("a dialogue's score")
    legend(ax)
    return figure


def judge_map(judges: Mapping[str, Mapping[str, Mapping[str, float | None]]], value: str) -> Figure | None:
    """Draw judges[agent][judge][value]: each agent's (column) score by every single judge (row), and by all judges."""
    rows = list(dict.fromkeys(name for by_judge in judges.values() for name in by_judge))
    table = np.array([[_float(by_judge.get(name, {}).get(value)) for by_judge in judges.values()] for name in rows])
    if len(rows) < 3 or np.isnan(table).all():
        return None
    figure, ax = axes((max(3.6, 1.7 + 1.15 * len(judges)), 1.2 + 0.42 * len(rows)))
    ax.imshow(table, cmap="Blues", vmin=0, vmax=100, aspect="auto")
    for (i, j), shown in np.ndenumerate(table):
        if not np.isnan(shown):
            ax.text(j, i, f"{shown:.1f}", ha="center", va="center", color="white" if shown > 60 else INK, fontsize=9)
    ax.set_xticks(range(len(judges)), [agent.replace(":", ":\n") for agent in judges], fontsize=8.5)
    ax.set_yticks(range(len(rows)), ["all of them" if name == "panel" else name for name in rows], fontsize=8.5)
    ax.tick_params(length=0, labelcolor=INK)
    ax.grid(False)
    return figure


def dimensions(correlation: Mapping[str, Mapping[str, float | None]]) -> Figure | None:
    """Draw the mean of every dimension of chat quality, with its correlation with the total."""
    known = {name: entry for name, entry in correlation.items() if entry["mean"] is not None}
    if not known:
        return None
    figure, ax = axes(HALF)
    heights = [_float(entry["mean"]) for entry in known.values()]
    bars = ax.barh(range(len(known)), heights, color=BLUE, height=0.6)
    said = [f"{e['mean']:.1f}" + (f"   R² {e['r2']:.2f}" if e["r2"] is not None else "") for e in known.values()]
    ax.bar_label(bars, said, padding=4, fontsize=8.5, color=MUTED)
    ax.set_yticks(range(len(known)), [f"{name.replace('_', ' ')} ({DIMENSIONS[name]} %)" for name in known], fontsize=9)
    ax.invert_yaxis()
    ax.set_xlim(0, 125)
    ax.grid(False)
    ax.set_xticks([0, 30, 60, 90])
    return figure


# --- parts -------------------------------------------------------------------------------------


def _dialogue_means(assessed: Sequence[Assessment], value: str) -> list[float]:
    by_dialogue: dict[tuple[str, str], list[float]] = {}
    for a in assessed:
        logic = None if a.worth.logic is None else a.worth.logic.logic
        score = {"overall": a.worth.overall, "logic": logic, "chat": a.worth.chat}[value]
        if score is not None:
            by_dialogue.setdefault((a.agent, a.dialogue), []).append(score)
    return [sum(scores) / len(scores) for scores in by_dialogue.values()]


def _box(ax: Axes, x: float, y: float, text: str, note: str, fill: str, edge: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    shape = FancyBboxPatch(
        (x - _BOX / 2, y - _TALL),
        _BOX,
        2 * _TALL,
        boxstyle="round,pad=0,rounding_size=0.08",
        fc=fill,
        ec=edge,
        zorder=3,
    )
    ax.add_patch(shape)
    ax.text(x, y + 0.08, text, ha="center", va="center", fontsize=6.6, color=INK, zorder=4, linespacing=1.05)
    ax.text(x, y - _TALL + 0.08, note, ha="center", va="center", fontsize=6.2, color=MUTED, zorder=4)


def _edge(
    ax: Axes,
    here: tuple[float, float],
    there: tuple[float, float],
    label: str,
    scale: tuple[float, float],
    between: Sequence[tuple[float, float]],
    *,
    covered: bool,
) -> None:
    start, end = (here[0] + _BOX / 2, here[1]), (there[0] - _BOX / 2, there[1])
    bends = _BENDS if there[0] - here[0] > 1 else (0.0,)
    bend = min(bends, key=lambda bend: _count_crossings(_arc(start, end, bend, scale), between))
    look = {"color": "#9aa5b1", "lw": 0.9, "linestyle": "-" if covered else ":"}
    style = f"arc3,rad={bend}"
    ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "connectionstyle": style, **look}, zorder=1)
    if label:
        x, y = _arc(start, end, bend, scale)[_POINTS // 2]
        frame = {"fc": "white", "ec": GRID, "pad": 0.6, "lw": 0.4}
        ax.text(x, y, label, fontsize=5.4, color=MUTED, ha="center", va="center", zorder=4, bbox=frame)


def _arc(
    start: tuple[float, float], end: tuple[float, float], bend: float, scale: tuple[float, float]
) -> list[tuple[float, float]]:
    """Return points of matplotlib's arc3, a parabola whose bend is measured in inches."""
    across, down = (end[0] - start[0]) * scale[0], (end[1] - start[1]) * scale[1]
    middle = (
        (start[0] + end[0]) / 2 + bend * down / scale[0],
        (start[1] + end[1]) / 2 - bend * across / scale[1],
    )
    shares = [i / (_POINTS - 1) for i in range(_POINTS)]
    x, y = (
        [(1 - t) ** 2 * s + 2 * t * (1 - t) * m + t**2 * e for t in shares]
        for s, m, e in zip(start, middle, end, strict=True)
    )
    return list(zip(x, y, strict=True))


def _count_crossings(points: Sequence[tuple[float, float]], places: Sequence[tuple[float, float]]) -> int:
    """Return the number of points that are inside a box."""
    return sum(abs(x - a) < _BOX / 2 and abs(y - b) < _TALL for x, y in points for a, b in places)


def _condition(branch: Branch) -> str:
    if branch.above is not None:
        return f"> {branch.above}"
    return "/".join(map(str, branch.values or ()))


def _count_label(customers: int) -> str:
    return "1 customer" if customers == 1 else f"{customers} customers"


def _shade(share: float) -> str:
    """Return white for 0, the report's red for 1."""
    return "#{:02x}{:02x}{:02x}".format(*(round(255 + share * (c - 255)) for c in (0xE8, 0x86, 0x5A)))


def _wrap(text: str, width: int = 24) -> str:
    return "\n".join(textwrap.wrap(text, width, max_lines=2, placeholder="..."))


def _float(value: float | None) -> float:
    return float("nan") if value is None else value
