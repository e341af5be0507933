"""Weights & Biases: the same keys as metrics.jsonl, reward histograms, a table of sampled responses.

The only importer of wandb. What wandb gathers on its own (program, arguments, code, git, environment, host)
is turned off, so that only what is handed to this class reaches its files or its server.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from hamr.errors import BadInput
from hamr.observability.metrics import Histogram, total_rewards
from hamr.observability.redact import redact
from hamr.types import RewardRecord

Mode = Literal["offline", "online", "disabled"]


def check_wandb(mode: Mode, environ: Mapping[str, str] | None = None) -> None:
    """Raises BadInput if `online` is asked for without a key in the environment. Call before Ray starts."""
    env = os.environ if environ is None else environ
    if mode == "online" and not env.get("WANDB_API_KEY"):
        raise BadInput("logging.wandb.mode", mode, "needs a key; set WANDB_API_KEY in the environment, or mode=offline")


class WandbSink:
    """One W&B run beside a run folder; its id stands in `wandb/id`, so that a resumed run goes on with it.

    `folder` is the run folder; wandb writes under `folder/wandb/`. Offline runs are sent later by
    `wandb sync <folder>/wandb/offline-run-*`. Disabled, every call does nothing and wandb is not imported.
    """

    def __init__(
        self,
        folder: Path,
        *,
        mode: Mode = "offline",
        project: str = "hamr",
        entity: str | None = None,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        check_wandb(mode)
        self._run: Any = None
        self.id: str | None = None
        if mode == "disabled":
            return
        import wandb

        self._wandb = wandb
        self.id = _run_id(folder / "wandb" / "id")
        settings = wandb.Settings(
            mode=mode,
            silent=True,
            console="off",
            disable_code=True,
            save_code=False,
            disable_git=True,
            disable_job_creation=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        self._run = wandb.init(
            dir=str(folder),
            id=self.id,
            # Offline there is no server to ask; the id alone ties the parts together when they are synced.
            resume="allow" if mode == "online" else None,
            project=project,
            entity=entity,
            name=name,
            config=redact(dict(config or {})),
            settings=settings,
        )
        # Stages count their steps anew, and W&B's own counter must grow: so `step` is a column, not the counter.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def metrics(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        if self._run:
            self._run.log({"step": step, "stage": stage, **values})

    def records(self, step: int, records: Sequence[RewardRecord]) -> None:
        """Histogram of the step's total rewards; nothing if none could be scored."""
        rewards = total_rewards(records)
        if self._run and rewards:
            h = Histogram.of(rewards)
            pair = (list(h.counts), list(h.edges))
            self._run.log({"step": step, "reward/total/histogram": self._wandb.Histogram(np_histogram=pair)})

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """A table of sampled responses; its columns are the keys of the rows in the order of appearance."""
        if self._run and rows:
            columns = list(dict.fromkeys(k for row in rows for k in row))
            data = [[_cell(row.get(c)) for c in columns] for row in rows]
            self._run.log({"step": step, "samples": self._wandb.Table(columns=columns, data=data)})

    def close(self, *, failed: bool = False) -> None:
        if self._run:
            self._run.finish(exit_code=int(failed))
            self._run = None


def _cell(value: Any) -> Any:
    # A W&B column has one type; numbers stay numbers, all else is text.
    return value if isinstance(value, int | float) or value is None else str(value)


def _run_id(path: Path) -> str:
    if path.is_file():
        return path.read_text().strip()
    path.parent.mkdir(parents=True, exist_ok=True)
    new = secrets.token_hex(4)
    path.write_text(new + "\n")
    return new
