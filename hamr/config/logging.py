"""Sections of `logging`."""

from __future__ import annotations

from typing import Literal

from hamr.config.custom import CallbacksConfig
from hamr.config.section import Fraction, NonNegative, PositiveFloat, Section


class WandbConfig(Section):
    mode: Literal["offline", "online", "disabled"] = "offline"
    """`offline` writes to the run folder, `online` also uploads, `disabled` writes nothing."""
    project: str = "hamr"
    """Project in W&B, MLflow (experiment) and Trackio."""
    name: str | None = None
    """Name of the run in W&B, MLflow and Trackio. null: the name of its run folder, which differs between runs."""
    notes: str | None = None
    """Notes on the run in W&B."""
    system_metrics: bool = False
    """Also record what W&B and Trackio measure of this machine: processor, memory, GPU, disk and network use."""
    entity: str | None = None
    """W&B user or team. null: the default of the account."""
    group: str | None = None
    """Name of a group of runs: seeds of one experiment, a sweep."""
    job_type: str = "train"
    """Job type in W&B."""
    tags: tuple[str, ...] = ()
    """Tags of the run in W&B."""
    artifacts: bool = False
    """Also upload the ledger and the newest checkpoint when the run ends."""


SinkName = Literal["tensorboard", "mlflow", "trackio", "prometheus"]


class AlarmsConfig(Section):
    """Limits of step metrics, upper ones unless stated otherwise. Beyond a limit, an alarm is raised (a line on the
    terminal, `alarm/<name>` = 1). null: no limit."""

    audit_drift: PositiveFloat | None = 4.0
    """Change of the distance between reranker and judge inside the trust interval, in standard errors."""
    audit_bound: NonNegative | None = 0.0
    """Amount by which the mean gap inside the trust interval certainly exceeds its limit
    (`rewards.consistency.certificate.limit`)."""
    length_correlation: Fraction | None = 0.8
    """Absolute correlation of reward and response length."""
    scorer_gap: Fraction | None = 0.5
    """Mean distance between reranker and judge on replies that both scored."""
    top_reply_frac: Fraction | None = 0.5
    """Share of the most frequent reply among all replies of the policy in ten steps. The alarm names the reply."""
    act_diversity: Fraction | None = 0.55
    """Lower limit of the effective number of acts (or clusters by meaning) among the policy's replies, as a share of
    that of the acts due. Two equally frequent acts where four are due have 0.5. Needs `scorers.check_every`."""
    truth_drop: Fraction | None = 0.15
    """Decrease of `truth/exact_act` below its best earlier value while the reward has increased."""
    truth_act_drop: Fraction | None = 0.3
    """The same of a single act, which the alarm names. A decrease that may be chance counts as 0."""


class LoggingConfig(Section):
    wandb: WandbConfig = WandbConfig()
    sinks: tuple[SinkName, ...] = ()
    """Sinks of the metrics in addition to metrics.jsonl and W&B. `tensorboard`: `<run folder>/tensorboard`. `mlflow`:
    MLFLOW_TRACKING_URI, else `<run folder>/mlflow`. `trackio`: TRACKIO_DIR, else `<run folder>/trackio`. `prometheus`:
    Ray gauges, exported by every node."""
    console: bool = True
    """Show the progress of the run on the terminal."""
    alarms: AlarmsConfig = AlarmsConfig()
    callbacks: CallbacksConfig = CallbacksConfig()
