"""Weights & Biases sink: the keys of metrics.jsonl, reward histograms, a table of sampled responses.

This is the only importer of wandb. What wandb collects on its own (program, arguments, code, git, environment, host) is
turned off, so that only the data passed to this class reaches its files or its server; `system_metrics` adds the use of
the machine. If W&B hangs or dies, the run loses its W&B record and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import psutil

from hamr.config.logging import WandbConfig
from hamr.errors import BadInput
from hamr.security.redaction import redact
from hamr.telemetry.metrics import histogram, total_rewards
from hamr.telemetry.sinks import Sink
from hamr.types import RewardRecord

Mode = Literal["offline", "online", "disabled"]
log = logging.getLogger(__name__)

CLOSE_S = {"offline": 60.0, "online": 600.0}
"""Longest wait at the end of the run for W&B to write or send its remaining data."""
WAITING_CALLS = 10_000
MOST_ERRORS = 3
MORE = "more"


def check_wandb(mode: Mode, environ: Mapping[str, str] | None = None) -> None:
    """Raise BadInput if `online` is set without a key in the environment. Call before Ray starts."""
    env = os.environ if environ is None else environ
    if mode == "online" and not env.get("WANDB_API_KEY"):
        raise BadInput("logging.wandb.mode", mode, "needs a key; set WANDB_API_KEY in the environment, or mode=offline")


class WandbSink(Sink):
    """One W&B run per run folder; its id is in `wandb/id`, so that a resumed run continues it.

    `folder` is the run folder; wandb writes under `folder/wandb/`. Send offline runs later by `wandb sync
    <folder>/wandb/offline-run-*`. In disabled mode, calls do nothing and wandb is not imported.
    """

    def __init__(
        self,
        folder: Path,
        options: WandbConfig = WandbConfig(),  # noqa: B008 - frozen
        *,
        name: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """`name`: name of the run where `options` has none."""
        check_wandb(options.mode)
        self._kept = folder if options.artifacts else None
        self._run: Any = None
        self._table: Any = None
        self.id: str | None = None
        if options.mode == "disabled":
            return
        import wandb

        self._wandb = wandb
        self._close_s = CLOSE_S[options.mode]
        self._courier = _Courier()
        self.id = _run_id(folder / "wandb" / "id")
        settings = wandb.Settings(
            mode=options.mode,
            silent=True,
            console="off",
            disable_code=True,
            save_code=False,
            disable_git=True,
            disable_job_creation=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_disable_stats=not options.system_metrics,
            x_save_requirements=False,
        )
        self._run = wandb.init(
            dir=str(folder),
            id=self.id,
            # Offline, there is no server to query; the id alone joins the parts when they are synced.
            resume="allow" if options.mode == "online" else None,
            project=redact(options.project),
            entity=options.entity,
            name=redact(options.name or name),
            notes=redact(options.notes),
            group=redact(options.group),
            job_type=redact(options.job_type),
            tags=redact(list(options.tags)) or None,
            config=redact(dict(config or {})),
            settings=settings,
        )
        # Each stage counts its steps from the start, but W&B's counter must grow: so `step` is a column, not the
        # counter.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def metrics(self, step: int, stage: str, values: Mapping[str, float]) -> None:
        if self._run:
            self._log({"step": step, "stage": stage, **values})

    def records(self, step: int, records: Sequence[RewardRecord]) -> None:
        """Log a histogram of the step's total rewards; nothing if none could be scored."""
        rewards = total_rewards(records)
        if self._run and rewards:
            drawn = self._wandb.Histogram(np_histogram=histogram(rewards))
            self._log({"step": step, "reward/total/histogram": drawn})

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add sampled responses to the run's one table, which W&B extends by the new rows only.

        Its columns are the keys of the first step's rows; keys that appear later are in the column `more`.
        """
        if self._run and rows:
            self._courier.take(partial(self._add_samples, self._run, step, [redact(dict(row)) for row in rows]))

    def _add_samples(self, run: Any, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        if self._table is None:
            columns = ["step", *dict.fromkeys(key for row in rows for key in row), MORE]
            self._table = self._wandb.Table(columns=columns, log_mode="INCREMENTAL", allow_mixed_types=True)
        known = self._table.columns[1:-1]
        for row in rows:
            more = {key: value for key, value in row.items() if key not in known}
            # A column has one type: numbers stay numbers, all other values become text.
            values = (row.get(column) for column in known)
            cells = (value if isinstance(value, int | float | None) else str(value) for value in values)
            self._table.add_data(step, *cells, json.dumps(more, default=str) if more else None)
        run.log({"step": step, "samples": self._table})

    def _keep(self, run: Any, kind: str, path: Path) -> None:
        artifact = self._wandb.Artifact(f"{kind}-{self.id}", type=kind)
        if path.is_dir():
            artifact.add_dir(str(path))
        else:
            artifact.add_file(str(path))
        run.log_artifact(artifact)

    def _log(self, row: dict[str, Any]) -> None:
        run = self._run
        self._courier.take(lambda: run.log(row))

    def close(self, *, failed: bool = False) -> None:
        """Wait until W&B has processed all data, at most `CLOSE_S`.

        With `artifacts`, the ledger and the newest checkpoint are uploaded first.
        """
        run, self._run = self._run, None
        if run:
            for kind, path in files_to_upload(self._kept) if self._kept else ():
                self._courier.take(partial(self._keep, run, kind, path))
            self._courier.take(lambda: run.finish(exit_code=int(failed)))
            self._courier.close(self._close_s)


def files_to_upload(folder: Path) -> list[tuple[str, Path]]:
    """Return (kind, path) of a run folder's artifacts: the ledger and the checkpoint of the highest step."""
    steps = [p for p in (folder / "checkpoints").glob("step_*") if p.name.removeprefix("step_").isdigit()]
    newest = max(steps, key=lambda p: int(p.name.removeprefix("step_")), default=None)
    found = [("ledger", folder / "ledger.sqlite"), *([("checkpoint", newest)] if newest else [])]
    return [(kind, path) for kind, path in found if path.exists()]


class _Courier:
    """Executes calls in order in its own thread. Callers neither wait for them nor see their errors.

    After MOST_ERRORS consecutive errors all further calls are dropped.
    """

    def __init__(self) -> None:
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue(WAITING_CALLS)
        self._broken = False
        self._thread = threading.Thread(target=self._deliver, daemon=True, name="wandb")
        self._thread.start()

    def take(self, call: Callable[[], None]) -> None:
        if self._broken:
            return
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._give_up("it has not responded for a long time")

    def close(self, timeout_s: float) -> None:
        with contextlib.suppress(queue.Full):
            self._calls.put_nowait(None)
        self._thread.join(1.0 if self._broken else timeout_s)
        if self._thread.is_alive():
            self._give_up(f"it did not finish in {timeout_s:g} s")
            _end_service()  # otherwise it would keep this process from ending

    def _deliver(self) -> None:
        errors = 0
        while (call := self._calls.get()) is not None:
            if self._broken:
                continue
            try:
                call()
                errors = 0
            except Exception as error:
                errors += 1
                log.debug("W&B call failed", exc_info=True)
                if errors == MOST_ERRORS:
                    self._give_up(f"{type(error).__name__}: {error}")

    def _give_up(self, reason: str) -> None:
        if self._broken:
            return
        self._broken = True
        log.warning("W&B logging disabled for the rest of this run (%s); metrics.jsonl is complete", reason)


def _end_service() -> None:
    """Kill W&B's own process, a child of this one."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.name().startswith("wandb"):
                child.kill()


def _run_id(path: Path) -> str:
    if path.is_file():
        return path.read_text().strip()
    path.parent.mkdir(parents=True, exist_ok=True)
    new = secrets.token_hex(4)
    path.write_text(new + "\n")
    return new
