"""`hamr sft`: supervised fine-tuning on a mix of sets, with per-set validation loss before, during and after."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hamr import signals
from hamr.apps.pipeline.log import is_pipeline
from hamr.apps.report.live import live_report
from hamr.apps.report.report import write_report
from hamr.apps.sft.preview import mix_table
from hamr.apps.sft.sets import PreparedSft, prepare_sft
from hamr.apps.shared.live_control import LiveControl
from hamr.apps.shared.machine import machine, versions
from hamr.apps.shared.own_functions import check_own_functions, load_callbacks
from hamr.apps.shared.pool_room import local_node
from hamr.apps.shared.preemption import Preemption, stop_error
from hamr.apps.shared.preparation import check_checkpoint_room
from hamr.apps.shared.sinks import open_sinks
from hamr.apps.shared.start_status import StartStatus
from hamr.apps.shared.summary import attention
from hamr.apps.shared.training_job import Job, how_to_resume, stoppable
from hamr.cluster.model_folders import POLICY, check_models
from hamr.cluster.nodes import cluster_nodes
from hamr.cluster.placement import check_demands, place
from hamr.cluster.resource_requests import ResourceRequest, trainer_demand
from hamr.cluster.session import check_cluster, ray_session
from hamr.config.algorithm import AlgorithmConfig
from hamr.config.schema import Config
from hamr.data.sft_encoding import EncodedItem, items_batch, part_losses
from hamr.errors import BadInput, Preempted, RunFolderError
from hamr.models.precision import precision_notes, trainer_computation
from hamr.report.terminal import WIDTH, tables
from hamr.telemetry.console import Console
from hamr.telemetry.memory import MemoryWatch
from hamr.telemetry.metrics import read_metrics
from hamr.telemetry.recorder import RunRecorder
from hamr.telemetry.run_folder import RunFolder
from hamr.telemetry.summary import write_summary
from hamr.trainer.actors import TrainerGroup
from hamr.trainer.checkpoints import Checkpoint, Checkpoints

if TYPE_CHECKING:
    from hamr.apps.sft.command import SftCommand

TEMPERATURE = 1.0
"""Sampling temperature 1: the loss uses the model's own distribution."""


def start(command: SftCommand) -> int:
    """Check all inputs, then train, or continue the runs of a `--multirun` folder."""
    if command.resume is not None and is_pipeline(command.resume):
        from hamr.apps.pipeline.run import resume

        return resume(command.resume, functions=command.overrides)
    job = Job.of(command)
    config = job.config
    wanted = [trainer_demand(config.trainer)]
    check_cluster(config.cluster)
    if config.cluster.address is None:
        check_demands(wanted, [local_node(config)])
    with stoppable(job, "sft"):
        return run_job(job, wanted)


def run_job(job: Job, wanted: Sequence[ResourceRequest]) -> int:
    config = job.config
    console = Console(config.experiment.name, enabled=config.logging.console)
    starting = StartStatus(job.path, RunFolder(job.path, locked=False).id, lambda: console.current or "Ray")
    with MemoryWatch() as memory, console, starting:
        with console.phase("model and data"):
            config = check_own_functions(config)
            job = dataclasses.replace(job, config=config)
            prepared = prepare_sft(config)
            check_checkpoint_room(config, prepared.model_path, job.path)
        for note in precision_notes([trainer_computation(config)]):
            console.note(note)
        console.show(*tables(mix_table(prepared), WIDTH))
        with job.open() as folder:
            signals.advise(how_to_resume(folder.path, config, "sft"))
            console.note(f"run folder {folder.path}")
            console.note(f"report {folder.report} (reloads itself in a browser while the run lasts)")
            with live_report(folder), ray_session(config.cluster, logs=folder.path / "logs"):
                if not config.cluster.elastic:  # an elastic cluster is never full
                    check_demands(wanted, cluster_nodes())
                check_models(place(wanted, cluster_nodes()), {POLICY: prepared.model_path})
                run = signals.run(train(prepared, folder, console, starting))
            write_summary(folder, summarise(run, console.seconds, memory.peak))
            report = write_report(folder.path)
    print(f"model: {run.model_path}\nreport: {report}")
    return 0


@dataclass(kw_only=True)
class SftRun:
    """State of a running job. `validations` has the step and each set's losses, in order.

    It is the only state in a checkpoint besides the trainers' own files, because the step determines the position in
    the mix.
    """

    prepared: PreparedSft
    trainers: TrainerGroup
    recorder: RunRecorder
    checkpoints: Checkpoints
    console: Console
    preemption: Preemption
    validations: list[dict[str, Any]] = field(default_factory=list)
    newest: Checkpoint | None = None

    @property
    def config(self) -> Config:
        return self.prepared.config

    @property
    def folder(self) -> Path:
        return self.checkpoints.folder.parent

    @property
    def model_path(self) -> str:
        assert self.newest is not None, "a finished run has a checkpoint"
        return str(self.newest.path / "policy")

    @property
    def state(self) -> dict[str, Any]:
        return {"sft": {"validations": self.validations, "mix": self.prepared.digest}}

    async def validate(self, step: int) -> None:
        """Compute each set's loss on its held-out items, in total and by part."""
        with self.console.phase("validation"):
            losses = {s.name: await self._losses(s.validation) for s in self.prepared.sets if s.validation}
        if losses:
            values = {f"eval/validation/{name}/{part}": v for name, own in losses.items() for part, v in own.items()}
            self.recorder.evaluation("validation", step, values)
            self.validations.append({"step": step, "sets": losses})

    async def _losses(self, items: Sequence[EncodedItem]) -> dict[str, float]:
        rows = await self.trainers.logprobs([item.group for item in items], temperature=TEMPERATURE)
        return part_losses(items, [row for [row] in rows])

    async def validate_if_due(self, step: int) -> None:
        """Validate every `experiment.eval_every` steps and after the last one, unless a validation of this step was
        restored.

        A run that was asked to stop leaves the validation to the resumed run.
        """
        every, last = self.config.experiment.eval_every, step == self.prepared.steps
        due = last or (every and step % every == 0)
        if due and step not in {validation["step"] for validation in self.validations}:
            await self.preemption.unless_asked(self.validate(step))

    async def save(self, step: int, *, later: bool) -> dict[str, float]:
        """Write a checkpoint, or copy what it holds and write it `later`. Return the time for it."""
        start = time.perf_counter()
        if later:
            await self.checkpoints.save_later(step, self.trainers.copy_state, self.state)
        else:
            self.newest = await self.checkpoints.save(step, self.trainers.save, self.state)
        return {"timing/step/checkpoint": time.perf_counter() - start}


class NoPools:
    """Interface of a run without pools to live control."""

    async def status(self) -> Mapping[str, Mapping[str, Any]]:
        return {}

    async def resize(self, wanted: Mapping[str, int]) -> Mapping[str, tuple[int, int]]:
        raise BadInput("pool", ", ".join(wanted), "a run of hamr sft has no pools to resize")


@contextlib.asynccontextmanager
async def live_control(folder: RunFolder, console: Console, starting: StartStatus) -> AsyncIterator[None]:
    """Publish the status of the run and take requests while the body runs, then publish how it ended."""
    control = LiveControl(folder.path, folder.id, note=lambda figures: None, phase=lambda: console.current)
    control.scaler = NoPools()
    starting.hand_over()
    try:
        async with control.serving():
            yield
    except BaseException as e:
        stopped = isinstance(e, Preempted) or signals.signal_of(e) is not None
        control.publish("preempted" if stopped else "failed", str(e) or type(e).__name__)
        raise
    control.publish("finished")


async def train(prepared: PreparedSft, folder: RunFolder, console: Console, starting: StartStatus) -> SftRun:
    """Run all steps from the start or after the newest checkpoint.

    Raises Preempted after SIGTERM or Ctrl-C, as `hamr.apps.shared.preemption` describes.
    """
    preemption = Preemption(prepared.config.experiment.checkpoint.grace_s)
    async with live_control(folder, console, starting):
        try:
            with preemption.watching(console.note):
                return await _train(prepared, folder, console, preemption)
        except asyncio.CancelledError:
            if not preemption.asked.is_set():
                raise
            newest = next(iter(await asyncio.to_thread(Checkpoints(folder.checkpoints).all)), None)
            kept = f", step {newest.step} of {prepared.steps} is kept" if newest else ""
            raise stop_error(f"{kept}; {how_to_resume(folder.path, prepared.config, 'sft')}") from None


async def _train(prepared: PreparedSft, folder: RunFolder, console: Console, preemption: Preemption) -> SftRun:
    config = prepared.config
    checkpoints = Checkpoints(folder.checkpoints, keep=config.experiment.checkpoint.keep)
    newest = await asyncio.to_thread(checkpoints.newest)
    check_resumable(prepared, newest, folder)
    with RunRecorder(
        folder,
        console=console,
        wandb=open_sinks(config, folder.path, folder.id),
        callbacks=load_callbacks(config, console.note),
    ) as recorder:
        with console.phase("start"):
            trainers = await TrainerGroup.start(
                config.trainer,
                AlgorithmConfig(),
                config.model,
                prepared.model_path,
                total_steps=prepared.steps,
                seed=config.experiment.seed,
                temperature=TEMPERATURE,
                asynchronous=config.experiment.checkpoint.asynchronous,
                start_timeout_s=config.cluster.start_timeout_s,
            )
        try:
            run = SftRun(
                prepared=prepared,
                trainers=trainers,
                recorder=recorder,
                checkpoints=checkpoints,
                console=console,
                preemption=preemption,
            )
            async with checkpoints:
                await take_steps(run, newest)
            return run
        finally:
            await trainers.shutdown()


def check_resumable(prepared: PreparedSft, newest: Checkpoint | None, folder: RunFolder) -> None:
    """Raise RunFolderError for another command's checkpoint, or if the sets have changed since it was written."""
    if newest is None:
        return
    if "sft" not in newest.state:
        raise RunFolderError("resume", str(folder.path), "is not a run of hamr sft; use `hamr train resume=...`")
    if newest.state["sft"].get("mix", prepared.digest) != prepared.digest:  # older checkpoints have no digest
        remedy = "was trained on other items than its sets hold now; put the files back, or start a new run"
        raise RunFolderError("resume", str(folder.path), remedy)


async def take_steps(run: SftRun, newest: Checkpoint | None) -> None:
    sft, total, checkpoint = run.config.sft, run.prepared.steps, run.config.experiment.checkpoint
    if newest is not None:
        await run.trainers.load(newest.path)
        run.newest, run.validations = newest, list(newest.state["sft"]["validations"])
        run.console.note(f"resume after step {newest.step}")
    else:
        await run.validate(0)
    run.recorder.begin("sft", total)
    waited: dict[str, float] = {}
    with run.console.phase("sft"), run.preemption.patiently():
        if newest is not None:
            await run.validate_if_due(newest.step)
        for step in range(newest.step + 1 if newest else 1, total + 1):
            begun = time.perf_counter()
            items = run.prepared.batch(step)
            metrics = dict(await run.trainers.train(items_batch(items, sft.loss_aggregation)))
            metrics["sft/computed_tokens"] = float(sum(map(len, items)))
            metrics["timing/step/total"] = time.perf_counter() - begun
            run.recorder.metrics(step, metrics | waited)
            waited = {}
            await run.checkpoints.settle(wait=False)
            await run.validate_if_due(step)
            asked = run.preemption.asked.is_set()
            if asked or step == total or step % checkpoint.every == 0:
                waited = await run.save(step, later=checkpoint.asynchronous and not asked and step < total)
            if asked:
                raise stop_error(f", step {step} of {total} is kept; {how_to_resume(run.folder, run.config, 'sft')}")


def summarise(run: SftRun, seconds: dict[str, float], memory_gb: float) -> dict[str, Any]:
    """Return summary.json: the mix, the losses of each validation, the path of the model, and the machine."""
    sets = {
        s.name: {
            "weight": s.weight,
            "train": len(s.train),
            "held_out": s.held_out,
            "validation": len(s.validation),
            "other_kinds": s.other_kinds,
            "too_long": s.too_long,
        }
        for s in run.prepared.sets
    }
    return {
        "name": run.config.experiment.name,
        "sft": {"sets": sets, "validations": run.validations, "model": f"checkpoints/step_{run.prepared.steps}/policy"},
        "timing": seconds,
        "steps": run.prepared.steps,
        "seed": run.config.experiment.seed,
        "versions": versions(),
        "machine": {
            **machine(),
            "attention": attention(run.config.trainer, read_metrics(RunFolder(run.folder, locked=False).metrics)),
        },
        "memory_gb_peak": memory_gb,
    }
