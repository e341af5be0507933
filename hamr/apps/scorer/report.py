"""Results of `hamr scorer`: accuracy, AUC and calibration of each scorer before and after training, and of word
overlap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from hamr.apps.scorer.reliability import Quality
from hamr.report.drawing import BLUE, CYCLE, GREY, axes, draw_png, legend, percent
from hamr.report.terminal import show
from hamr.report.values import Column, Table, number_columns
from hamr.telemetry.run_folder import RunFolder
from hamr.telemetry.summary import write_summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Measured = Mapping[str, Mapping[str, Mapping[str, Quality]]]
"""Pool -> set -> model (raw, tuned) or `overlap` -> figures."""


def write_measured(folder: RunFolder, found: Measured, paths: Mapping[str, str]) -> None:
    """Write summary.json and plots/reliability_<pool>_<set>.png, and print the figures as a table."""
    scorers = {
        name: {
            "model": paths[name],
            "quality": {kind: {model: asdict(q) for model, q in models.items()} for kind, models in sets.items()},
        }
        for name, sets in found.items()
    }
    write_summary(folder, {"scorers": scorers})
    for name, sets in found.items():
        for kind, models in sets.items():
            # Word overlap is not a probability.
            drawn = {model: found for model, found in models.items() if model != "overlap"}
            (folder.plots / f"reliability_{name}_{kind}.png").write_bytes(draw_reliability(drawn))
    show(measured_table(found))


def measured_table(found: Measured) -> Table:
    rows = tuple(
        (name, kind, model, q.n, q.accuracy, q.auc, q.precision, q.recall, q.calibration_error)
        for name, sets in found.items()
        for kind, models in sets.items()
        for model, q in models.items()
    )
    metrics = number_columns("{:.3f}", "accuracy", "AUC", "precision", "recall", "calibration error")
    return Table("", (*map(Column, ("scorer", "pairs", "model")), Column("n", "{}"), *metrics), rows)


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
