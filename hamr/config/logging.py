"""The sections of `logging`."""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from hamr.config.section import Fraction, Section


class WandbConfig(Section):
    mode: Literal["offline", "online", "disabled"] = "offline"
    project: str = "hamr"
    entity: str | None = None
    group: str | None = None
    """Runs that belong together: seeds of one experiment, a sweep."""
    job_type: str = "train"
    tags: tuple[str, ...] = ()
    artifacts: bool = False
    """Keep the ledger and the newest checkpoint there, too, when the run ends."""


SinkName = Literal["tensorboard", "mlflow", "prometheus"]


class AlarmsConfig(Section):
    """Limits beyond which a step's figure raises an alarm (a line on the terminal, `alarm/<name>` = 1); null: none."""

    audit_drift: PositiveFloat | None = 4.0
    """Standard errors by which the reranker's distance from the judge inside the trust interval has moved."""
    length_correlation: Fraction | None = 0.8
    """Of reward and response length, whatever the sign."""
    duplicate_frac: Fraction | None = None
    """Share of responses that a sibling has said word for word."""
    scorer_gap: Fraction | None = 0.5
    """Mean distance between reranker and judge where both spoke."""
    top_component: Fraction | None = None
    """Share of the rewards' spread that comes from one component."""
    top_reply_frac: Fraction | None = 0.5
    """Share of the most frequent reply among all that the policy says in a step."""
    truth_drop: Fraction | None = 0.15
    """Fall of `truth/exact_act` below its best earlier value while the reward has risen."""


class LoggingConfig(Section):
    wandb: WandbConfig = WandbConfig()
    sinks: tuple[SinkName, ...] = ()
    """Where the figures go beside metrics.jsonl and W&B. `tensorboard`: `<run folder>/tensorboard`. `mlflow`: where
    MLFLOW_TRACKING_URI says, else `<run folder>/mlflow`. `prometheus`: gauges of Ray's, exported by every node."""
    console: bool = True
    sample_rows: PositiveInt = 8
    """Sampled responses per step in the table with their reward breakdown."""
    alarms: AlarmsConfig = AlarmsConfig()
