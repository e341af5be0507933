"""Opens all metric backends of a run besides its own files as one sink."""

from __future__ import annotations

from pathlib import Path

from hamr.cluster.prometheus import PrometheusSink
from hamr.config.logging import LoggingConfig
from hamr.config.schema import Config
from hamr.telemetry.sinks import Sink, Sinks, check_library
from hamr.telemetry.tracker_sinks import MlflowSink, TensorboardSink, TrackioSink
from hamr.telemetry.wandb_sink import WandbSink, check_wandb


def check_sinks(logging: LoggingConfig) -> None:
    """Raise BadInput for a missing library or key. Call before anything starts."""
    check_wandb(logging.wandb.mode)
    for sink in logging.sinks:
        check_library(sink)


def open_sinks(config: Config, folder: Path, run: str) -> Sinks:
    """Open W&B, which may be disabled, and the backends in `logging.sinks`. `run` is the run's id."""
    wandb, values = config.logging.wandb, config.model_dump(mode="json")
    # A renamed folder continues its run in trackers that know a run by its name.
    name = wandb.name or run_name(config.experiment.name, folder.absolute().with_name(run))
    sinks: dict[str, Sink] = {"W&B": WandbSink(folder, wandb, name=name, config=values)}
    if "tensorboard" in config.logging.sinks:
        sinks["TensorBoard"] = TensorboardSink(folder)
    if "mlflow" in config.logging.sinks:
        sinks["MLflow"] = MlflowSink(folder, experiment=wandb.project, name=name, config=values)
    if "trackio" in config.logging.sinks:
        sinks["Trackio"] = TrackioSink(
            folder, project=wandb.project, name=name, config=values, system_metrics=wandb.system_metrics
        )
    if "prometheus" in config.logging.sinks:
        sinks["Prometheus"] = PrometheusSink(run)
    return Sinks(sinks)


def run_name(experiment: str, folder: Path) -> str:
    """Return the default name of a run: that of its folder, after the experiment's where the folder does not have it.

    >>> run_name("quickstart", Path("runs/quickstart-1125-1443")), run_name("quickstart", Path("sweep/3"))
    ('quickstart-1125-1443', 'quickstart-sweep-3')
    """
    folder = folder.absolute()
    return folder.name if experiment in folder.name else "-".join((experiment, folder.parent.name, folder.name))
