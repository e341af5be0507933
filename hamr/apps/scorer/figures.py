"""Reliability of a scorer's scores as probabilities, as one picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hamr.apps.scorer.reliability import Quality
from hamr.report.drawing import BLUE, CYCLE, GREY, axes, draw_png, legend, percent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_reliability(models: Mapping[str, Quality]) -> bytes:
    """Return a PNG with a line per model: the share of consistent pairs in each bin of scores, over their mean score.

    The area of a point is the share of the pairs in its bin; on the diagonal a score is a probability.
    """

    def make() -> Figure:
        figure, ax = axes((5.6, 5.2))
        ax.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1.2, label="calibrated")
        colours = (GREY, BLUE) if len(models) == 2 else CYCLE
        for (name, found), colour in zip(models.items(), colours, strict=False):
            at, height = [b.score for b in found.bins], [b.frequency for b in found.bins]
            ax.plot(at, height, color=colour, label=f"{name}, error {found.calibration_error:.2f}")
            ax.scatter(
                at, height, [30 + 600 * b.n / found.n for b in found.bins], color=colour, alpha=0.6, clip_on=False
            )
        ax.set_xlim(0, 1)
        ax.set_ylim(0, 1)
        percent(ax)
        ax.set_xlabel("score")
        ax.set_ylabel("consistent pairs")
        legend(ax, ncols=1)
        return figure

    return draw_png(make)
