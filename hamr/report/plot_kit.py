"""Common style of all plots: colours, fonts, axes.

Colours are distinguishable by colour-blind readers (Okabe and Ito's set). Lines that cross also differ in more than
colour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID = "#1f2933", "#616e7c", "#e4e7eb"
BLUE, SKY, GREEN, ORANGE, RED, PINK, GREY = "#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#9aa5b1"
CYCLE = (BLUE, ORANGE, GREEN, PINK, SKY, RED, GREY)

STYLE: dict[str, Any] = {
    "font.size": 10.5,
    "axes.edgecolor": "#cbd2d9",
    "axes.labelcolor": MUTED,
    "axes.labelsize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "ytick.left": False,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
    "figure.constrained_layout.use": True,
    "savefig.dpi": 150,
    "savefig.facecolor": "white",
}

WIDE, HALF = (10.4, 3.7), (5.6, 3.3)


def axes(size: tuple[float, float]) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure as MplFigure

    # pyplot is not used: its global registry would keep every figure alive and need a display.
    figure = MplFigure(figsize=size)
    return figure, figure.subplots()


def step_axis(ax: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10, steps=[1, 2, 5, 10], min_n_ticks=1))
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
    ax.legend(**{"loc": "lower left", "bbox_to_anchor": (-0.02, 1.0), "ncols": 5, "handlelength": 1.3, **options})
