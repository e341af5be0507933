"""Sinks of other trackers: TensorBoard, MLflow and Trackio. All get the metrics, the last two also the settings."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hamr.security.redaction import redact
from hamr.telemetry.sinks import Sink, finite_metrics

LONGEST_VALUE = 500
"""Maximum length of a parameter in characters that every MLflow store accepts."""


class TensorboardSink(Sink):
    """Scalars under `<run folder>/tensorboard`. A resumed run writes to the same folder; TensorBoard joins the parts by
    step."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(log_dir=str(folder / "tensorboard"))

    def metrics(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        for name, value in finite_metrics(stage, values).items():
            self._writer.add_scalar(name, value, global_step=step)
        self._writer.flush()

    def close(self, *, failed: bool = False) -> None:
        self._writer.close()


class MlflowSink(Sink):
    """One MLflow run per run folder. Its id is in `mlflow/id`, so that a resumed run continues it.

    MLFLOW_TRACKING_URI sets the store; the default is `<run folder>/mlflow`.
    """

    def __init__(self, folder: Path, *, experiment: str, name: str, config: Mapping[str, Any]) -> None:
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


class TrackioSink(Sink):
    """One Trackio run per run folder, which `trackio show` displays; a resumed run continues it.

    TRACKIO_DIR sets the folder of the database; the default is `<run folder>/trackio`. Trackio reads the variable when
    it is imported, so a process has one folder.
    """

    def __init__(
        self, folder: Path, *, project: str, name: str, config: Mapping[str, Any], system_metrics: bool = False
    ) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(folder / "trackio"))
        import trackio

        with contextlib.redirect_stdout(io.StringIO()):  # it prints several lines
            self._run = trackio.init(
                project=redact(project),
                name=redact(name),
                config=redact(dict(config)),
                resume="allow",
                embed=False,
                auto_log_gpu=system_metrics,
                auto_log_cpu=system_metrics,
            )

    def metrics(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        self._run.log(finite_metrics(stage, values), step=step)

    def close(self, *, failed: bool = False) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            self._run.finish()


def flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Flatten nested configuration to (dotted key, value) pairs.

    >>> flat({"a": {"b": 1}, "c": None})
    [('a.b', 1), ('c', None)]
    """
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        found += flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else [(f"{prefix}{key}", value)]
    return found
