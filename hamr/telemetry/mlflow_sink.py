"""MLflow sink: configuration as parameters, metrics of metrics.jsonl as metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hamr.security.redaction import redact
from hamr.telemetry.sinks import FiguresOnly, finite_metrics

LONGEST_VALUE = 500
"""Maximum length of a parameter in characters that every MLflow store accepts."""


class MlflowSink(FiguresOnly):
    """One MLflow run per run folder. Its id is in `mlflow/id`, so that a resumed run continues it.

    MLFLOW_TRACKING_URI sets the store; the default is `<run folder>/mlflow`.
    """

    def __init__(self, folder: Path, *, experiment: str, name: str, config: Mapping[str, Any]) -> None:
        import os

        import mlflow

        own = folder / "mlflow"
        own.mkdir(exist_ok=True)
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            mlflow.set_tracking_uri(f"sqlite:///{own / 'runs.db'}")
        known = own / "id"
        before = known.read_text().strip() if known.is_file() else None
        mlflow.set_experiment(redact(experiment))
        self._mlflow, self._run = mlflow, mlflow.start_run(run_id=before, run_name=redact(name))
        if before is None:
            known.write_text(self._run.info.run_id + "\n")
            mlflow.log_params({key: str(value)[:LONGEST_VALUE] for key, value in flat(redact(dict(config)))})

    def metrics(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(finite_metrics(stage, values), step=step)

    def close(self, *, failed: bool = False) -> None:
        self._mlflow.end_run("FAILED" if failed else "FINISHED")


def flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Flatten nested configuration to (dotted key, value) pairs.

    >>> flat({"a": {"b": 1}, "c": None})
    [('a.b', 1), ('c', None)]
    """
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        found += flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]
    return found
