"""A procedure as a drawing from top to bottom, with the agent's errors at each stage.

Layers follow Sugiyama's method: a node's layer is the longest path to it, an edge over several layers gets a point in
each of them, and the order within layers follows the neighbours' positions.
"""

from __future__ import annotations

import random
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from hamr.procedures.graph import Scenario
from hamr.procedures.schema import Branch
from hamr.report.drawing import GREEN, GREY, INK, LEAST_PX, MUTED, PAPER, RED, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Lengths are in points, which are CSS pixels at the figure's normal size.
_WIDTH, _HEIGHT, _GAP = 152.0, 66.0, 18.0
_LAYER = _HEIGHT + 62.0
_POINT = 30.0
"""Width kept free for an edge that passes a layer."""
_MARGIN = 10.0
_LINE, _LETTER = 1.22 * LEAST_PX, 0.64 * LEAST_PX
_LETTERS = int(0.92 * _WIDTH / _LETTER)
"""Letters in a line of a box."""
_STARTS, _SWEEPS, _ROUNDS = 8, 6, 24

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class GraphLayout:
    """Centres of the nodes, and for each edge its points from layer to layer, both ends included."""

    nodes: Mapping[str, Point]
    edges: Mapping[tuple[str, str], tuple[Point, ...]]
    width: float
    height: float


def draw_graph(
    scenario: Scenario, stages: Mapping[str, Mapping[str, int]], rows: Sequence[Mapping[str, Any]], agent: str
) -> Figure:
    """Draw the procedure.

    A stage is redder the more often the agent left the right path there (or took the wrong action at its end). An
    action shows the number of its customers whose dialogue with the agent was assessed; a dotted edge had none.
    """
    placed = layout(scenario)
    figure = new_figure((placed.width / 72, placed.height / 72), constrained=False)
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set_xlim(0, placed.width)
    ax.set_ylim(placed.height, 0)
    ax.axis("off")
    sent: Counter[str] = Counter()
    along: Counter[tuple[str, str]] = Counter()
    for row in rows:
        customers = row["assessed"][agent]
        sent[row["route"][1]] += customers
        for edge in pairwise((*row["nodes"], row["route"][1])):
            along[edge] += customers
    labels = []
    for edge, points in _with_ports(placed).items():
        _draw_edge(ax, points, covered=along[edge] > 0)
        text = " or ".join(map(_condition, scenario.graph.edges[edge]["when"]))
        if text:
            labels.append((_wrap_label(text), points))
    _draw_labels(ax, labels, placed)
    for node, centre in placed.nodes.items():
        if node in scenario.file.actions:
            note = "1 customer" if sent[node] == 1 else f"{sent[node]} customers"
            title = node if len(node) <= _LETTERS else node.replace("+", "+ ")
            _draw_box(ax, centre, title, note, GREEN, 0.15)
            continue
        seen = stages.get(node, {"passed": 0, "wrong": 0})
        share = seen["wrong"] / seen["passed"] if seen["passed"] else 0.0
        note = f"{seen['wrong']} of {seen['passed']} wrong" if seen["passed"] else "not reached"
        title = f"{node.removeprefix('stage')}. {scenario.file.stages[node].title.en}"
        _draw_box(ax, centre, title, note, RED if share else GREY, 0.55 * share)
    return figure


# --- layout ------------------------------------------------------------------------------------


def layout(scenario: Scenario) -> GraphLayout:
    import networkx

    graph = scenario.graph
    layer: dict[Any, int] = {}
    for node in networkx.topological_sort(graph):
        layer[node] = max((layer[before] + 1 for before in graph.predecessors(node)), default=0)
    chains = {
        (a, b): (a, *((a, b, at) for at in range(layer[a] + 1, layer[b])), b)
        for a, b in sorted(graph.edges, key=lambda edge: (layer[edge[0]], edge))
    }
    layer |= {item: item[2] for chain in chains.values() for item in chain[1:-1]}
    near: dict[Any, list[Any]] = {item: [] for item in layer}
    for chain in chains.values():
        for a, b in pairwise(chain):
            near[a].append(b)
            near[b].append(a)
    layers = [[item for item in layer if layer[item] == at] for at in range(max(layer.values()) + 1)]
    x = _find_positions(layers, near)
    left = min(x[item] - _size(item) / 2 for item in x) - _MARGIN
    right = max(x[item] + _size(item) / 2 for item in x) + _MARGIN
    place = {item: (x[item] - left, _MARGIN + _HEIGHT / 2 + _LAYER * layer[item]) for item in layer}
    return GraphLayout(
        nodes={item: place[item] for item in layer if isinstance(item, str)},
        edges={edge: tuple(_through(chain, place)) for edge, chain in chains.items()},
        width=right - left,
        height=_LAYER * (len(layers) - 1) + _HEIGHT + 2 * _MARGIN,
    )


def _through(chain: Sequence[Any], place: Mapping[Any, Point]) -> Iterator[Point]:
    """Yield both ends of an edge, and where it enters and leaves each layer between them."""
    for item in chain:
        x, y = place[item]
        yield from [(x, y)] if isinstance(item, str) else [(x, y - _HEIGHT / 2), (x, y + _HEIGHT / 2)]


def _size(item: Any) -> float:
    return _WIDTH if isinstance(item, str) else _POINT


def _find_positions(layers: Sequence[Sequence[Any]], near: Mapping[Any, list[Any]]) -> dict[Any, float]:
    """Return x of each item, from the order with the fewest crossings and the least width of several that are tried."""
    rng, found = random.Random(0), []
    for _ in range(_STARTS):
        ordered = _reduce_crossings(layers, near)
        x = _positions(ordered, near)
        found.append((_count_crossings(ordered, near), max(x.values()) - min(x.values()), x))
        layers = [rng.sample(items, len(items)) for items in layers]
    return min(found, key=lambda one: one[:2])[2]


def _reduce_crossings(layers: Sequence[Sequence[Any]], near: Mapping[Any, list[Any]]) -> list[list[Any]]:
    """Order each layer by the mean position of its neighbours, sweeping down and up; keep the fewest crossings."""
    current = best = [list(items) for items in layers]
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        current = [list(items) for items in current]
        for at in range(1, len(current)) if down else range(len(current) - 2, -1, -1):
            fixed = {item: i for i, item in enumerate(current[at - 1 if down else at + 1])}
            means = {}
            for i, item in enumerate(current[at]):
                positions = [fixed[other] for other in near[item] if other in fixed]
                means[item] = (sum(positions) / len(positions) if positions else 0.0, i)
            current[at].sort(key=means.__getitem__)
        if _count_crossings(current, near) < _count_crossings(best, near):
            best = current
    return best


def _count_crossings(layers: Sequence[Sequence[Any]], near: Mapping[Any, list[Any]]) -> int:
    total = 0
    for upper, lower in pairwise(layers):
        at = {item: i for i, item in enumerate(lower)}
        ends = [(i, at[other]) for i, item in enumerate(upper) for other in near[item] if other in at]
        total += sum((a - c) * (b - d) < 0 for k, (a, b) in enumerate(ends) for c, d in ends[:k])
    return total


def _positions(layers: Sequence[Sequence[Any]], near: Mapping[Any, list[Any]]) -> dict[Any, float]:
    """Return x of each item: close to its neighbours' mean, in the layer's order, without overlaps."""
    from scipy.optimize import isotonic_regression

    x: dict[Any, float] = {}
    offsets = []
    for items in layers:
        steps = [(_size(a) + _size(b)) / 2 + _GAP for a, b in pairwise(items)]
        offsets.append(np.concatenate([[0.0], np.cumsum(steps)]))
        x |= dict(zip(items, offsets[-1] - offsets[-1][-1] / 2, strict=True))
    for _ in range(_ROUNDS):
        for items, offset in zip(layers, offsets, strict=True):
            wanted = [np.mean([x[other] for other in near[item]]) if near[item] else x[item] for item in items]
            # Points of an edge pull strongly, so that long edges are straight.
            weights = [1.0 if isinstance(item, str) else 4.0 for item in items]
            placed = isotonic_regression(np.array(wanted) - offset, weights=weights).x + offset
            x |= dict(zip(items, placed.tolist(), strict=True))
    return x


# --- drawing -----------------------------------------------------------------------------------


def _with_ports(placed: GraphLayout) -> dict[tuple[str, str], tuple[Point, ...]]:
    """Return the edges' points, with the ends spread over the lower and the upper side of the boxes."""
    edges = {edge: list(points) for edge, points in placed.edges.items()}
    for node, (x, y) in placed.nodes.items():
        for own, end, neighbour, side in ((0, 0, 1, 1), (1, -1, -2, -1)):
            group = sorted((e for e in edges if e[own] == node), key=lambda e: placed.edges[e][neighbour][0])
            step = min(34.0, 0.8 * _WIDTH / max(1, len(group)))
            for i, edge in enumerate(group):
                edges[edge][end] = (x + (i - (len(group) - 1) / 2) * step, y + side * _HEIGHT / 2)
    return {edge: tuple(points) for edge, points in edges.items()}


def _draw_edge(ax: Axes, points: Sequence[Point], *, covered: bool) -> None:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    corners, codes = [points[0]], [Path.MOVETO]
    for (x0, y0), (x1, y1) in pairwise(points):
        bend = (y1 - y0) / 2
        corners += [(x0, y0 + bend), (x1, y1 - bend), (x1, y1)]
        codes += [Path.CURVE4] * 3
    arrow = FancyArrowPatch(
        path=Path(corners, codes),
        arrowstyle="-|>,head_width=3,head_length=6",
        linestyle="-" if covered else (0, (1.5, 2.5)),
        color=GREY,
        lw=1.3,
        zorder=1,
    )
    ax.add_patch(arrow)


def _draw_labels(ax: Axes, labels: Sequence[tuple[str, Sequence[Point]]], placed: GraphLayout) -> None:
    """Write the conditions on their edges, each where it covers no box and no other label."""
    taken = [(x, y, _WIDTH, _HEIGHT) for x, y in placed.nodes.values()]
    for text, points in labels:
        lines = text.split("\n")
        size = (_LETTER * max(map(len, lines)) + 6, _LINE * len(lines) + 2)
        spots = [
            _on_curve(a, b, t) for a, b in pairwise(points) for t in (0.5, 0.38, 0.62, 0.28, 0.72, 0.2, 0.8, 0.12, 0.88)
        ]
        x, y = min(spots, key=lambda spot: sum(_overlap((*spot, *size), other) for other in taken))
        x = min(max(x, size[0] / 2), placed.width - size[0] / 2)
        taken.append((x, y, *size))
        frame = {"fc": PAPER, "ec": "none", "pad": 1.5}
        ax.text(x, y, text, fontsize=LEAST_PX, color=MUTED, ha="center", va="center", zorder=2, bbox=frame)


def _on_curve(a: Point, b: Point, t: float) -> Point:
    """Return a point of the Bézier curve that `_draw_edge` draws from a to b."""
    s = 3 * (1 - t) * t**2 + t**3
    bend = (b[1] - a[1]) / 2
    y = a[1] + 3 * (1 - t) ** 2 * t * bend + 3 * (1 - t) * t**2 * bend + t**3 * (b[1] - a[1])
    return a[0] + s * (b[0] - a[0]), y


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Return the common area of two boxes, given by centre and size."""
    wide, high = ((one[i + 2] + other[i + 2]) / 2 - abs(one[i] - other[i]) for i in (0, 1))
    return max(0.0, min(wide, one[2], other[2])) * max(0.0, min(high, one[3], other[3]))


def _draw_box(ax: Axes, centre: Point, text: str, note: str, colour: str, alpha: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    x, y = centre
    corner = (x - _WIDTH / 2, y - _HEIGHT / 2)
    for look in ({"fc": PAPER, "ec": colour}, {"fc": colour, "alpha": alpha, "ec": "none"}):
        ax.add_patch(FancyBboxPatch(corner, _WIDTH, _HEIGHT, boxstyle="round,pad=0,rounding_size=7", zorder=3, **look))
    lines = textwrap.wrap(text, _LETTERS, max_lines=3, placeholder=" ...")
    top = y - _LINE * len(lines) / 2
    for i, line in enumerate([*lines, note]):
        ax.text(
            x, top + i * _LINE, line, ha="center", va="center", fontsize=LEAST_PX, zorder=4,
            color=MUTED if i == len(lines) else INK,
        )  # fmt: skip


def _condition(branch: Branch) -> str:
    return f"> {branch.above}" if branch.above is not None else "/".join(map(str, branch.values or ()))


def _wrap_label(text: str, width: int = 16) -> str:
    """Break a long list of values at its slashes."""
    lines = [""]
    for part in text.replace("/", "/\0").split("\0"):
        if len(lines[-1] + part) > width and lines[-1]:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)
