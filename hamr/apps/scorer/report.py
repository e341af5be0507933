"""Results of `hamr scorer`: accuracy, AUC and calibration of each scorer before and after training, and of word
overlap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from hamr.apps.scorer.figures import draw_reliability
from hamr.apps.scorer.reliability import Quality
from hamr.report.terminal import show
from hamr.report.values import Column, Table, number_columns
from hamr.telemetry.run_folder import RunFolder
from hamr.telemetry.summary import write_summary

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
