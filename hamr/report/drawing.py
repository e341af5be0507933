"""Common look of all figures, and the step from a matplotlib figure to a report's `Figure`.

Colours are distinguishable by colour-blind readers (Okabe and Ito's set). Lines that cross also differ in more than
colour. On a page a figure is SVG whose colours are the page's variables, so it follows the light or dark scheme.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hamr.report.values import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as MplFigure

PALETTE = {
    "ink": ("#1f2933", "#e6e9ee"),
    "muted": ("#5a6675", "#a8b2be"),
    "line": ("#e4e7eb", "#2d3540"),
    "axis": ("#cbd2d9", "#4a5462"),
    "paper": ("#ffffff", "#171c23"),
    "ground": ("#f5f7fa", "#0e1217"),
    "blue": ("#0072b2", "#4aa8e8"),
    "sky": ("#56b4e9", "#9ad4f5"),
    "green": ("#009e73", "#2fc196"),
    "orange": ("#e69f00", "#f0b840"),
    "red": ("#d55e00", "#ff8a4c"),
    "pink": ("#cc79a7", "#e39ac4"),
    "grey": ("#9aa5b1", "#6b7684"),
    "good": ("#00684a", "#4cd1a1"),
    "bad": ("#a33e00", "#ffa27a"),
    "good-ground": ("#d3f0e3", "#12352a"),
    "bad-ground": ("#fde3d0", "#42240f"),
}
"""CSS variable -> its colour in the light and in the dark scheme."""

_LIGHT = {name: light for name, (light, _) in PALETTE.items()}
INK, MUTED, GRID, AXIS, PAPER = (_LIGHT[name] for name in ("ink", "muted", "line", "axis", "paper"))
BLUE, SKY, GREEN, ORANGE, RED, PINK, GREY = (
    _LIGHT[name] for name in ("blue", "sky", "green", "orange", "red", "pink", "grey")
)
CYCLE = (BLUE, ORANGE, GREEN, PINK, SKY, RED, GREY)

TEXT = 10.8
"""Smallest font size; a figure of width `HALF` then has 11 px text on a phone that is 390 px wide."""
LEAST_PX = 11.0

STYLE: dict[str, Any] = {
    "font.size": 11,
    "axes.edgecolor": AXIS,
    "axes.labelcolor": MUTED,
    "axes.labelsize": TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": TEXT,
    "ytick.labelsize": TEXT,
    "ytick.left": False,
    "text.color": INK,
    "text.parse_math": False,
    "legend.frameon": False,
    "legend.fontsize": TEXT,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
    "savefig.dpi": 150,
    "savefig.facecolor": PAPER,
    "svg.fonttype": "none",
}

WIDE, HALF = (10.4, 3.8), (4.7, 3.1)


def new_figure(size: tuple[float, float], *, constrained: bool = True) -> MplFigure:
    from matplotlib.figure import Figure as MplFigure

    # pyplot is not used: its global registry would keep every figure alive and need a display.
    return MplFigure(figsize=size, layout="constrained" if constrained else None)


def axes(size: tuple[float, float]) -> tuple[MplFigure, Axes]:
    figure = new_figure(size)
    return figure, figure.subplots()


def draw(
    name: str,
    title: str,
    make: Callable[[], MplFigure | None],
    *,
    caption: str = "",
    alt: str = "",
    wide: bool = False,
    png: bool = True,
) -> Figure | None:
    """Draw a figure in the common style; None where `make` has nothing to show.

    `name` is that of the file; characters that are not allowed there become `_`. Without `png`, which takes half of the
    time, the figure is for a page only.
    """
    import matplotlib

    name = "".join(c if c.isalnum() or c in "-_" else "_" for c in name)
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = make()
        if figure is None:
            return None
        svg, least_width = _svg(figure)
        return Figure(
            name=name,
            title=title,
            caption=caption,
            alt=alt or f"Plot: {title}. {caption}".strip(),
            svg=svg,
            png=_png(figure) if png else None,
            least_width=least_width,
            wide=wide,
        )


def draw_png(make: Callable[[], MplFigure]) -> bytes:
    """Draw a figure in the common style as PNG, for a file outside a report."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        return _png(make())


def _png(figure: MplFigure) -> bytes:
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    return drawn.getvalue()


def _svg(figure: MplFigure) -> tuple[str, int]:
    """Return the figure as inline SVG, and the width in pixels at which its smallest text has `LEAST_PX`."""
    from matplotlib.text import Text

    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", transparent=True)
    text = drawn.getvalue()
    svg = text[text.index("<svg") :]
    svg = re.sub(r"\s*<(metadata|style)\b.*?</\1>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"| version="[^"]*"', "", svg).replace("xlink:href", "href")
    # Several figures are on one page, so the generic names of groups would not be unique.
    svg = re.sub(r'(<g) id="[^"]*"', r"\1", svg)
    svg = re.sub(r' width="[^"]*" height="[^"]*"( viewBox)', r"\1", svg, count=1)
    for css, light in _LIGHT.items():
        svg = svg.replace(f": {light}", f": var(--{css})")
    sizes = [t.get_fontsize() for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip()]
    width = figure.get_size_inches()[0] * 72
    return svg.strip(), math.ceil(width * LEAST_PX / min(sizes, default=TEXT))


# --- parts of figures --------------------------------------------------------------------------


def step_axis(ax: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(
        MaxNLocator(integer=True, nbins=10 if _is_wide(ax) else 6, steps=[1, 2, 5, 10], min_n_ticks=1)
    )
    ax.set_xlabel("step")
    ax.margins(x=0.02)


def log_axis(ax: Axes) -> None:
    """Make the axis logarithmic, with plain numbers at 1, 2, 5, 10, ... instead of powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))


def percent(ax: Axes, *, x: bool = False) -> None:
    from matplotlib.ticker import PercentFormatter

    (ax.xaxis if x else ax.yaxis).set_major_formatter(PercentFormatter(1.0))


def legend(ax: Axes, **options: Any) -> None:
    default = {"ncols": 6 if _is_wide(ax) else 2, "handlelength": 1.2, "columnspacing": 1.2, "handletextpad": 0.5}
    ax.legend(**{"loc": "lower left", "bbox_to_anchor": (-0.02, 1.0), **default, **options})


def _is_wide(ax: Axes) -> bool:
    figure: Any = ax.figure
    return figure.get_size_inches()[0] > HALF[0]


Bar = float | tuple[float, float, float]
"""A height, or a mean with the bounds of its interval."""


def grouped_bars(
    size: tuple[float, float],
    series: Mapping[str, Mapping[str, Bar | None]],
    *,
    colours: Sequence[str] = CYCLE,
    label: str = "",
) -> tuple[MplFigure, Axes]:
    """Draw series[label][group] as a bar in the group; intervals are whiskers.

    `label` is the format of the number above each bar; it is left out where the bars are too narrow for it.
    """
    figure, ax = axes(size)
    groups = list(dict.fromkeys(group for bars in series.values() for group in bars))
    width = 0.8 / len(series)
    bar_units = size[0] * 72 * 0.85 / max(1, len(groups)) * width
    for i, (name, bars) in enumerate(series.items()):
        known = [(x, bar) for x, group in enumerate(groups) if (bar := bars.get(group)) is not None]
        at = [x + (i - (len(series) - 1) / 2) * width for x, _ in known]
        spans = [bar if isinstance(bar, tuple) else (bar, bar, bar) for _, bar in known]
        error = [[max(0.0, m - low) for m, low, _ in spans], [max(0.0, high - m) for m, _, high in spans]]
        whiskers: dict[str, Any] = {"yerr": error, "ecolor": INK, "capsize": 3} if any(map(any, error)) else {}
        drawn = ax.bar(
            at, [m for m, _, _ in spans], width * 0.92, label=name, color=colours[i % len(colours)], **whiskers
        )
        if label and bar_units > 0.6 * TEXT * max((len(label.format(m)) for m, _, _ in spans), default=0):
            ax.bar_label(drawn, fmt=label.format, padding=2, fontsize=TEXT, color=MUTED)
    ax.set_xticks(range(len(groups)), [group.replace("_", " ") for group in groups])
    ax.tick_params(axis="x", length=0, labelcolor=INK)
    legend(ax)
    return figure, ax


def heat_map(rows: Sequence[str], columns: Sequence[str], values: Any, form: str, high: float) -> MplFigure:
    """Draw a matrix as cells that are bluer the higher their value, up to `high`. A cell of NaN is empty."""
    from matplotlib.patches import Rectangle

    figure, ax = axes((max(HALF[0], 1.9 + 1.1 * len(columns)), 1.2 + 0.44 * len(rows)))
    for i in range(len(rows)):
        for j in range(len(columns)):
            value = values[i][j]
            if not math.isnan(value):
                # Transparent colour, because it lies on the page's background, light or dark.
                share = min(max(value / high, 0.0), 1.0)
                ax.add_patch(Rectangle((j - 0.48, i - 0.46), 0.96, 0.92, color=BLUE, alpha=0.04 + 0.46 * share, lw=0))
                ax.text(j, i, form.format(value), ha="center", va="center", fontsize=TEXT)
    ax.set_xlim(-0.5, len(columns) - 0.5)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xticks(range(len(columns)), list(columns))
    ax.set_yticks(range(len(rows)), list(rows))
    ax.tick_params(length=0, labelcolor=INK)
    ax.grid(False)
    ax.spines["bottom"].set_visible(False)
    return figure
