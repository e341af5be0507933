"""Calibration plot: rho against judge calls, and rho over both ends of the interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hamr.calibration.fit import Calibration
from hamr.report.drawing import BLUE, CYCLE, GREY, INK, MUTED, ORANGE, RED, draw_png, legend, new_figure, percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Profile = Sequence[tuple[float, float]]
_MARKERS = ("s", "^", "v", "D", "o")


def draw_calibration(fit: Calibration, tau_a: Profile, tau_b: Profile) -> bytes:
    """Return a PNG. `tau_a` and `tau_b`: (tau, rho) with one end of the interval varied and the rest as fitted."""

    def make() -> Figure:
        figure = new_figure((11.6, 4.4))
        left, right = figure.subplots(1, 2)
        _front(left, fit)
        _profiles(right, fit, tau_a, tau_b)
        return figure

    return draw_png(make)


def _front(ax: Axes, fit: Calibration) -> None:
    shares = [point.escalated_frac for point in fit.frontier]
    ax.step(shares, [point.spearman for point in fit.frontier], where="post", color=BLUE, label="best cascades")
    colours = [colour for colour in CYCLE if colour != BLUE]
    for i, row in enumerate(fit.rows.values()):
        if row.spearman is None:
            continue
        fitted = row.name == "fit"
        ax.plot(
            row.escalated_frac,
            row.spearman,
            linestyle="none",
            marker="*" if fitted else _MARKERS[i % len(_MARKERS)],
            markersize=15 if fitted else 7,
            color=RED if fitted else colours[i % len(colours)],
            label=row.name,
            clip_on=False,
            zorder=4 if fitted else 3,
        )
    if fit.most_escalated < 1.0:
        ax.axvline(fit.most_escalated, color=GREY, linestyle="--", linewidth=1.2, label="most allowed")
    ax.set_xlim(-0.02, 1.02)
    percent(ax, x=True)
    ax.set_xlabel("replies about which the judge is asked")
    ax.set_ylabel("Spearman's rho with the teacher")
    legend(ax, ncols=3)


def _profiles(ax: Axes, fit: Calibration, tau_a: Profile, tau_b: Profile) -> None:
    for profile, at, name, colour, style in (
        (tau_a, fit.cascade.tau_a, "tau_a moved", BLUE, "-"),
        (tau_b, fit.cascade.tau_b, "tau_b moved", ORANGE, "--"),
    ):
        ax.plot([tau for tau, _ in profile], [rho for _, rho in profile], style, color=colour, label=name)
        ax.plot(at, fit.spearman, "o", color=colour, markersize=7, clip_on=False, zorder=3)
        ax.annotate(f"{at:.3g}", (at, fit.spearman), (0, 7), textcoords="offset points", ha="center", color=INK)
    ax.set_xlim(-0.02, 1.02)
    ax.set_xlabel("end of the trust interval")
    ax.set_ylabel("Spearman's rho, the rest as fitted", color=MUTED)
    legend(ax)
