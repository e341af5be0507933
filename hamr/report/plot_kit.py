"""How every plot of a run looks: colours, style, axes.

Colours are told apart by colour-blind readers too (Okabe and Ito's set), and lines differ in more than colour
where they cross.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hamr.apps.report.data import STAGE_NAMES, ReportData

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED, GRID = "#1f2933", "#616e7c", "#e4e7eb"
BLUE, SKY, GREEN, ORANGE, RED, PINK, GREY = "#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#9aa5b1"
STAGE_COLOURS = {"base": GREY, "sft": SKY, "rl": BLUE}
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

    # No pyplot: its global registry would keep every figure alive and want a display.
    figure = MplFigure(figsize=size)
    return figure, figure.subplots()


def step_axis(ax: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10, steps=[1, 2, 5, 10], min_n_ticks=1))
    ax.set_xlabel("step")
    ax.margins(x=0.02)


def _log_axis(ax: Axes) -> None:
    """Logarithmic, with plain numbers at 1, 2, 5, 10, ... instead of powers of ten."""
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


def grouped_bars(
    data: ReportData, groups: dict[str, dict[str, float | None]], size: tuple[float, float], label: str = "{:.2f}"
) -> tuple[Figure, Axes]:
    """groups[group][stage] -> height; the value stands above each bar."""
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
    """keys: metric -> (label, colour)."""
    known = [(data.series(key, stage), *look) for key, look in keys.items()]
    known = [k for k in known if k[0][0]]
    if not known:
        return None
    figure, ax = axes(HALF)
    for (steps, values), label, colour in known:
        ax.plot(steps, values, color=colour, label=label, marker="o" if len(steps) < 3 else None, ms=5)
    log = log and all(v > 0 for (_, values), _, _ in known for v in values)
    if log:
        _log_axis(ax)
    ax.set_ylabel(ylabel)
    step_axis(ax)
    if len(known) > 1:
        legend(ax)
    return figure
