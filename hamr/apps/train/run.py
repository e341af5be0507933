"""`hamr train`: SFT warm-up, then RL with the hybrid reward, evaluated on held-out samples before and after."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from typing import TYPE_CHECKING

from hamr import signals
from hamr.apps.pipeline.log import is_pipeline
from hamr.apps.report.live import live_report
from hamr.apps.report.report import write_report
from hamr.apps.scorer.fallback import check_scorable, with_allowed_repetitions, with_usable_scorers
from hamr.apps.scorer.prepare import Progress, TunedScorer, prepare_scorers
from hamr.apps.shared.dialogue_checks import customer_scenarios
from hamr.apps.shared.live_control import LiveControl
from hamr.apps.shared.own_functions import check_own_functions, load_callbacks
from hamr.apps.shared.pool_room import check_endpoints, local_node
from hamr.apps.shared.pools_up import pools_of
from hamr.apps.shared.preemption import Preemption, stop_error
from hamr.apps.shared.preparation import Prepared, check_room, prepare
from hamr.apps.shared.reply_clusters import with_reply_clusters
from hamr.apps.shared.sinks import open_sinks
from hamr.apps.shared.start_status import StartStatus
from hamr.apps.shared.summary import summarise_run
from hamr.apps.shared.training_job import SUPERVISED, Job, how_to_resume, stoppable
from hamr.apps.train.episodes import unscored_note
from hamr.apps.train.pool_scaler import LivePoolScaler
from hamr.apps.train.restarts import JOB, run_again, supervise
from hamr.apps.train.run_actors import RunActors, start_run_actors
from hamr.apps.train.scorer_refit import ScorerRefit, check_refit
from hamr.apps.train.scorer_watch import check_tuned
from hamr.apps.train.stages import Run, rl_stage, warm_up
from hamr.bench.sage.episodes import with_levels
from hamr.cascade.auditors import find_auditor
from hamr.cluster.model_folders import POLICY, check_models, pool_model
from hamr.cluster.nodes import cluster_nodes
from hamr.cluster.placement import check_placement, describe_placement, plan
from hamr.cluster.session import check_cluster, ray_session
from hamr.data.splits import count_copies
from hamr.errors import Preempted, RunFolderError
from hamr.models.precision import computations, precision_notes
from hamr.telemetry.console import Console
from hamr.telemetry.live import LiveStatus
from hamr.telemetry.memory import MemoryWatch
from hamr.telemetry.metrics import read_metrics
from hamr.telemetry.recorder import RunRecorder
from hamr.telemetry.run_folder import RunFolder
from hamr.telemetry.summary import write_summary
from hamr.trainer.checkpoints import Checkpoint, Checkpoints

if TYPE_CHECKING:
    from hamr.apps.train.command import TrainCommand


def start(command: TrainCommand) -> int:
    """Check all inputs, then run the training job, or continue the pipeline of a folder. A job that its cluster starts
    again resumes its run."""
    if JOB in os.environ and SUPERVISED not in os.environ:
        return run_again(command, start_once)
    return start_once(command)


def start_once(command: TrainCommand) -> int:
    if command.resume is not None and is_pipeline(command.resume):
        from hamr.apps.pipeline.run import resume

        return resume(command.resume, functions=command.overrides)
    job = Job.of(command)
    if (step := finished_step(job)) is not None:
        print(f"the run has finished step {step}, its last\nreport: {RunFolder(job.path, locked=False).report}")
        return 0
    check_cluster(job.config.cluster)
    if job.config.cluster.address is None:
        check_endpoints(job.active_config, job.active_config.pools)
        check_placement(job.active_config, [local_node(job.config)])
    if job.config.experiment.max_restarts and SUPERVISED not in os.environ:
        return supervise(command, job)
    with stoppable(job):
        return run_job(job)


def finished_step(job: Job) -> int | None:
    """Return the last step of a run to resume that has finished and has its last checkpoint, None for another run."""
    status = LiveStatus.read(job.path) if job.resume else None
    if status is None or status.state != "finished":
        return None
    folder = RunFolder(job.path, locked=False)
    steps = [row["step"] for row in read_metrics(folder.metrics) if row["stage"] == "rl"]
    newest = next(iter(Checkpoints(folder.checkpoints).all()), None)
    return newest.step if newest is not None and newest.step == max(steps, default=0) else None


def run_job(job: Job) -> int:
    console = Console(job.config.experiment.name, enabled=job.config.logging.console)
    starting = StartStatus(job.path, RunFolder(job.path, locked=False).id, lambda: console.current or "Ray")
    with MemoryWatch() as memory, console, starting:
        with console.phase("model and data"):
            # The digests of the functions' files go into the run's config.yaml.
            job = dataclasses.replace(job, config=check_own_functions(job.config))
            prepared = prepare(job.active_config)
            splits, clusters = prepared.splits, None
            if job.config.env.levels:
                splits = with_levels(splits, customer_scenarios(job.config), job.config.env.levels)
            if job.config.rewards.scorers:
                splits, clusters = with_reply_clusters(splits, console.note)
            check_scorable(job.config, splits)
            config, scored_by = with_usable_scorers(job.config, splits)
            config = with_allowed_repetitions(config, splits.train)
            experiment = config.experiment.with_steps(len(splits.train))
            config = config.model_copy(update={"experiment": experiment})
            job = dataclasses.replace(job, config=config)
            prepared = dataclasses.replace(prepared, config=job.active_config, splits=splits, clusters=clusters)
            check_refit(job.config, prepared.truth)
            find_auditor(job.config.rewards.consistency, prepared.truth)
            check_room(job.config, prepared.model_path, job.path)
        for note in (prepared.dropped_note, unscored_note(job.config)):
            if note:
                console.note(note)
        if copies := count_copies((*splits.train, *splits.validation, *splits.test)):
            console.note(f"data: {copies} samples repeat others in everything but their id; consider removing them")
        if scored_by:
            console.note(scored_by)
        if experiment.episodes is not None:
            console.note(
                f"{experiment.steps} steps of {experiment.prompts_per_step} prompts from {len(splits.train)} samples"
            )
        for note in precision_notes(computations(job.active_config)):
            console.note(note)
        with console.phase("scorers"):
            scorers = prepare_scorers(
                job.active_config, splits.train, splits.validation, console.note, console.progress
            )
            check_tuned(job.config, scorers)
        with job.open() as folder:
            signals.advise(how_to_resume(folder.path, job.config))
            console.note(f"run folder {folder.path}")
            console.note(f"report {folder.report} (reloads itself in a browser while the run lasts)")
            with live_report(folder), ray_session(job.config.cluster, logs=folder.path / "logs"):
                nodes = cluster_nodes()
                lines = describe_placement(job.active_config, nodes)
                for line in () if job.config.cluster.address is None else lines:
                    console.note(line)
                models = {pool_model(name): scorer.path for name, scorer in scorers.items()}
                check_models(plan(job.active_config, nodes), {POLICY: prepared.model_path, **models})
                finished = signals.run(train(prepared, scorers, folder, console, starting))
            write_summary(folder, summarise_run(finished, scorers, console.seconds, memory.peak, nodes))
            report = write_report(folder.path)
    print(f"report: {report}")
    return 0


async def train(
    prepared: Prepared,
    scorers: dict[str, TunedScorer],
    folder: RunFolder,
    console: Console,
    starting: StartStatus,
) -> Run:
    """Run the stages in sequence on one set of actors, starting after the newest checkpoint, if any.

    Raises Preempted after SIGTERM or Ctrl-C, as `hamr.apps.shared.preemption` describes.
    """
    preemption = Preemption(prepared.config.experiment.checkpoint.grace_s)
    try:
        with preemption.watching(console.note):
            return await _train(prepared, scorers, folder, console, starting, preemption)
    except asyncio.CancelledError:
        if preemption.asked.is_set():
            raise stop_error(f"; {how_to_resume(folder.path, prepared.config)}") from None
        raise


async def _train(
    prepared: Prepared,
    scorers: dict[str, TunedScorer],
    folder: RunFolder,
    console: Console,
    starting: StartStatus,
    preemption: Preemption,
) -> Run:
    config = prepared.config
    checkpoints = Checkpoints(folder.checkpoints, keep=config.experiment.checkpoint.keep)
    newest = await asyncio.to_thread(checkpoints.newest)
    if newest is not None and "sft" in newest.state:
        raise RunFolderError("resume", str(folder.path), "is a run of hamr sft; continue with `hamr sft resume=...`")
    run: Run | None = None
    everyone = {s.id: s for split in ("train", "validation", "test") for s in getattr(prepared.splits, split)}
    with RunRecorder(
        folder,
        console=console,
        wandb=open_sinks(config, folder.path, folder.id),
        prompts=everyone,
        limits=config.logging.alarms,
        audited=audits if (audits := config.rewards.consistency).audit_frac else None,
        # The expected act of a turn is not that of the sample.
        truth=None if config.holds_dialogues else prepared.truth,
        callbacks=load_callbacks(config, console.note),
    ) as recorder:
        paths = {name: s.path for name, s in scorers.items()}
        control = LiveControl(folder.path, folder.id, note=recorder.add, phase=lambda: console.current)
        starting.hand_over()
        world: RunActors | None = None
        try:
            async with control.serving():
                with console.phase("start"):
                    applications = pools_of(control.run, folder.path)
                    world = await start_run_actors(prepared, paths, applications, console.note)
                control.scaler = scaler = LivePoolScaler(config, paths, world.run, world.router)
                judge = config.rewards.scorers.get("judge")
                run = Run(
                    prepared=prepared,
                    world=world,
                    recorder=recorder,
                    checkpoints=checkpoints,
                    console=console,
                    run_id=control.run,
                    preemption=preemption,
                    refit=ScorerRefit(
                        config=config,
                        truth=prepared.truth,
                        train=prepared.splits.train,
                        folder=folder.path / "scorers",
                        paths=paths,
                        judge=world.pools[judge].ask if judge else None,
                        reload=scaler.reload,
                        progress=Progress(console.note, console.progress),
                    ),
                )
                with console.phase("scorer check"):
                    await run.scorers.at_start()
                async with checkpoints:
                    await run_stages(run, newest)
        except BaseException as e:
            asked, error = preemption.asked.is_set(), e
            if asked and isinstance(e, asyncio.CancelledError):
                error = await dropped_error(run) if run else stop_error(f"; {how_to_resume(folder.path, config)}")
            failed = not asked or (isinstance(error, Exception) and not isinstance(error, Preempted))
            control.publish("failed" if failed else "preempted", str(error) or type(error).__name__)
            if error is e:
                raise
            raise error from None
        else:
            control.publish("finished")
            return run
        finally:
            if world is not None:
                await world.stop()


async def dropped_error(run: Run) -> Preempted:
    """Return the error for a run whose unfinished work was dropped after a signal; it names the step to resume from."""
    if not run.doing:
        return stop_error(f"; {how_to_resume(run.folder, run.config)}")
    steps, grace_s = run.config.experiment.steps, run.preemption.grace_s
    # `newest` would read every byte, and the time after a signal is short.
    newest = next(iter(await asyncio.to_thread(run.checkpoints.all)), None)
    warm_up = next(iter(await asyncio.to_thread(run.warm_ups.all)), None) if newest is None else None
    if newest is not None:
        kept = f"step {newest.step} of {steps} is kept"
    else:
        kept = f"step {warm_up.step} of the warm-up is kept" if warm_up else "no earlier step was kept"
    return stop_error(
        f": {run.doing} was not finished and saved within experiment.checkpoint.grace_s={grace_s:g} s and is dropped, "
        f"{kept}; {how_to_resume(run.folder, run.config)}"
    )


async def run_stages(run: Run, newest: Checkpoint | None) -> None:
    """Run base evaluation, SFT, evaluation, RL and a final evaluation.

    A resumed run enters RL at its checkpoint. With zero RL steps the final evaluation is skipped.
    """
    with run.preemption.patiently():
        if newest is None:
            await warm_up(run)
        await rl_stage(run, newest)
        steps = run.config.experiment.steps
        if steps and await run.preemption.unless_asked(run.evaluate("rl", steps)) is None:
            raise stop_error(
                f" before the last evaluation, step {steps} of {steps} is kept; {how_to_resume(run.folder, run.config)}"
            )
