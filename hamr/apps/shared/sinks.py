"""Opens all metric backends of a run besides its own files as one sink."""

from __future__ import annotations

from pathlib import Path

from hamr.cluster.prometheus import PrometheusSink
from hamr.config.logging import LoggingConfig
from hamr.config.schema import Config
from hamr.telemetry.mlflow_sink import MlflowSink, check_mlflow
from hamr.telemetry.sinks import Sink, Sinks
from hamr.telemetry.tensorboard_sink import TensorboardSink, check_tensorboard
from hamr.telemetry.wandb_sink import WandbSink, check_wandb


def check_sinks(logging: LoggingConfig) -> None:
    """Raise BadInput for a missing library or key. Call before anything starts."""
    check_wandb(logging.wandb.mode)
    if "tensorboard" in logging.sinks:
        check_tensorboard()
    if "mlflow" in logging.sinks:
        check_mlflow()


def open_sinks(config: Config, folder: Path, run: str) -> Sinks:
    """Open W&B, which may be disabled, and the backends in `logging.sinks`. `run` names the run there."""
    wandb, values = config.logging.wandb, config.model_dump(mode="json")
    sinks: dict[str, Sink] = {
        "W&B": WandbSink(
            folder,
            mode=wandb.mode,
            project=wandb.project,
            entity=wandb.entity,
            name=config.experiment.name,
            group=wandb.group,
            job_type=wandb.job_type,
            tags=wandb.tags,
            artifacts=wandb.artifacts,
            config=values,
        )
    }
    if "tensorboard" in config.logging.sinks:
        sinks["TensorBoard"] = TensorboardSink(folder)
    if "mlflow" in config.logging.sinks:
        sinks["MLflow"] = MlflowSink(folder, experiment=wandb.project, name=config.experiment.name, config=values)
    if "prometheus" in config.logging.sinks:
        sinks["Prometheus"] = PrometheusSink(run)
    return Sinks(sinks)
