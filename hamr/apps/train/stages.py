"""The stages of a training job on one set of actors: warm-up, RL, and the evaluations around them."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from hamr.algorithms.batch import BatchBuilder
from hamr.apps.shared.preemption import Preemption, stop_error
from hamr.apps.shared.preparation import Prepared
from hamr.apps.shared.training_job import how_to_resume
from hamr.apps.train.dialogues import simulate
from hamr.apps.train.episodes import check_dialogues_held, episode_runner, evaluate_customers
from hamr.apps.train.held_out import HeldOutResult, evaluate_held_out
from hamr.apps.train.reply_checks import Counted, check_scorers, restore_replies
from hamr.apps.train.run_actors import RunActors
from hamr.apps.train.scorer_refit import ScorerRefit
from hamr.apps.train.scorer_watch import ScorerWatch
from hamr.cascade.auditors import CascadeRouter, with_auditor
from hamr.cascade.cascade_controller import CascadeController, ControlledRewarder
from hamr.cascade.certificate import feasibility
from hamr.config.schema import Config
from hamr.controller import Controller
from hamr.data.curriculum import Curriculum
from hamr.data.sft import sft_batch
from hamr.data.stream import PromptStream
from hamr.experience import Experience
from hamr.rollout.episodes import EpisodeRunner
from hamr.telemetry.console import Console
from hamr.telemetry.recorder import RunRecorder
from hamr.trainer.checkpoints import Checkpoint, Checkpoints
from hamr.types import RewardRecord, SampleKey


@dataclass(kw_only=True)
class Run:
    """State of a running training job. The stages fill `evaluations` and `dialogues`."""

    prepared: Prepared
    world: RunActors
    recorder: RunRecorder
    checkpoints: Checkpoints
    console: Console
    run_id: str
    preemption: Preemption
    refit: ScorerRefit
    version: int = 0
    doing: str = ""
    """The current activity, for the message after a signal; empty when idle."""
    evaluations: dict[str, Any] = field(default_factory=dict)
    dialogues: dict[str, Any] = field(default_factory=dict)
    waited: dict[str, float] = field(default_factory=dict)
    """Time for the latest checkpoint, which the metrics of the next step get."""
    checked: int = 0
    """The RL step after which the scorers were last checked on the policy's replies."""
    checked_ahead: set[SampleKey] = field(default_factory=set)
    """Replies of later steps that this check had already, or that a refit made incomparable."""
    experience: Experience | None = None
    """The groups in flight during RL, with `experiment.asynchrony` or oversampling."""
    cascade_controller: CascadeController = field(init=False)
    scorers: ScorerWatch = field(init=False)

    def __post_init__(self) -> None:
        self.cascade_controller = CascadeController(self.config.rewards.consistency)
        self.scorers = ScorerWatch(
            config=self.config,
            splits=self.prepared.splits,
            truth=self.prepared.truth,
            clusters=self.prepared.clusters,
            pools={name: pool.ask for name, pool in self.world.pools.items()},
            note=self.console.note,
        )

    @property
    def folder(self) -> Path:
        return self.checkpoints.folder.parent

    @property
    def warm_ups(self) -> Checkpoints:
        """Checkpoints of an interrupted warm-up."""
        return Checkpoints(self.checkpoints.folder / "warm_up")

    @property
    def config(self) -> Config:
        return self.prepared.config

    @cached_property
    def router(self) -> CascadeRouter:
        """The router as the source of records."""
        return with_auditor(self.world.router, self.config.rewards.consistency, self.prepared.truth)

    @cached_property
    def episodes(self) -> EpisodeRunner:
        """Runner of the configured dialogues."""
        pools = {name: pool.ask for name, pool in self.world.pools.items()}
        return episode_runner(self.prepared, self.world.workers, self.router, pools)

    def state(self, stream: PromptStream) -> dict[str, Any]:
        """Return the state that a checkpoint holds in addition to the trainers' own files."""
        state = {"version": self.version, "stream": stream.state(), "evaluations": self.evaluations}
        state |= {"dialogues": self.dialogues, "checked": self.checked}
        state["checked_ahead"] = [asdict(key) for key in self.checked_ahead]
        if self.experience is not None:
            state["unfinished"] = self.experience.state()
        return {**state, "cascade": self.cascade_controller.state(), "refits": self.refit.state()}

    async def save(self, step: int, state: dict[str, Any]) -> None:
        """Write the checkpoint of an RL step, which may end later; that of the last step is complete afterwards."""
        experiment, learner, start = self.config.experiment, self.world.learner, time.perf_counter()
        if experiment.checkpoint.asynchronous and step < experiment.steps:
            await self.checkpoints.save_later(step, learner.copy_state, state)
        else:
            await self.checkpoints.save(step, learner.save, state)
        self.waited = {"timing/step/checkpoint": time.perf_counter() - start}

    async def evaluate(self, stage: str, step: int) -> HeldOutResult:
        """Evaluate the engines' current weights on the test split, and in whole dialogues where configured."""
        how = self.config.experiment.evaluation
        samples = self.prepared.splits.test[: self.config.data.max_eval]
        sampling = self.config.rollout.sampling(temperature=how.temperature)
        with self.console.phase(f"evaluation {stage}"):
            result = await evaluate_held_out(
                samples,
                run=self.run_id,
                stage=stage,
                step=step,
                encode=self.prepared.codec.prompt,
                engine=self.world.workers,
                # The configured cascade, so that figures before, during and after training are comparable.
                rewarder=Counted(self.router, self.console, len(samples) * how.samples),
                sampling=sampling,
                responses=how.samples,
                formats=self.prepared.codec.formats,
                stop_at_answer=how.stop_at_answer,
                truth=self.prepared.truth,
                matching=self.config.rewards.consistency.matching,
            )
            dialogues: dict[str, float] = {}
            turns: list[RewardRecord] = []
            if self.config.holds_dialogues:
                dialogues, turns = await evaluate_customers(
                    self.episodes,
                    samples,
                    run=self.run_id,
                    stage=stage,
                    step=step,
                    sampling=sampling,
                    # The turns of a harness and of the user's own dialogues have no expected act.
                    truth=None if self.config.env.command or self.config.rollout.episode else self.prepared.truth,
                )
                if self.config.experiment.unscored.max_frac is not None:
                    check_dialogues_held(turns, stage, self.config.rollout.episode)
        self.recorder.evaluation(stage, step, {**result.metrics(stage), **dialogues}, (*result.records, *turns))
        sage = self.config.experiment.sage
        if sage.scenarios and stage in sage.stages:
            await simulate(self, stage, step)
        self.evaluations[stage] = result.as_dict()  # last, so that a run that is stopped before repeats the evaluation
        return result


@dataclass(kw_only=True)
class WarmUp:
    """State of a warm-up: `done` steps, the order of the samples and the generator that draws their references."""

    run: Run
    samples: PromptStream
    rng: random.Random
    done: int = 0

    @classmethod
    async def enter(cls, run: Run) -> WarmUp:
        """Return a new warm-up, or restore the saved state of an interrupted one."""
        experiment, splits = run.config.experiment, run.prepared.splits
        seed = experiment.seed if experiment.sft.seed is None else experiment.sft.seed
        kept, rng = await asyncio.to_thread(run.warm_ups.newest), random.Random(seed)
        if kept is None:
            return cls(run=run, samples=PromptStream(splits.for_sft, seed), rng=rng)
        await run.world.learner.load(kept.path)
        run.evaluations.update(kept.state["evaluations"])
        run.dialogues.update(kept.state["dialogues"])
        version, numbers, following = kept.state["rng"]
        rng.setstate((version, tuple(numbers), following))
        run.console.note(f"resume the warm-up after step {kept.step}")
        samples = PromptStream(splits.for_sft, seed, kept.state["stream"])
        return cls(run=run, samples=samples, rng=rng, done=kept.step)

    async def evaluate(self, stage: str) -> None:
        """Evaluate the policy, unless the run did so before it was resumed."""
        if stage in self.run.evaluations:
            return
        if await self.run.preemption.unless_asked(self.run.evaluate(stage, step=0)) is None:
            await self.leave()

    async def leave(self) -> NoReturn:
        """Save the warm-up and end the run. Raises Preempted."""
        run, steps = self.run, self.run.config.experiment.sft.steps
        state = {"stream": self.samples.state(), "rng": self.rng.getstate()}
        state |= {"evaluations": run.evaluations, "dialogues": run.dialogues}
        await run.warm_ups.save(self.done, run.world.learner.save, state)
        kept = f" in the warm-up, step {self.done} of {steps} is kept" if self.done else " before the first step"
        raise stop_error(f"{kept}; {how_to_resume(run.folder, run.config)}")


async def warm_up(run: Run) -> None:
    """Evaluate the policy, train it on the references, and evaluate it again.

    RL has no checkpoint yet, so the state of an interrupted warm-up is saved in a separate folder until RL starts.
    """
    state = await WarmUp.enter(run)
    await state.evaluate("base")
    if run.config.experiment.sft.steps:
        await sft_stage(run, state)
        await state.evaluate("sft")


async def sft_stage(run: Run, state: WarmUp) -> None:
    """Train on the references with the next-token loss, so that the policy learns the output format."""
    sft = run.config.experiment.sft
    run.recorder.begin("sft", sft.steps)
    with run.console.phase("sft"):
        async with run.world.alone():
            for step in range(state.done + 1, sft.steps + 1):
                run.doing = f"step {step} of the warm-up"
                batch = sft_batch(
                    state.samples.take(sft.samples_per_step),
                    run.prepared.codec.prompt,
                    run.prepared.codec.answer,
                    state.rng,
                    references=sft.references_per_sample,
                    turns=sft.turns,
                    aggregation=sft.loss_aggregation,
                )
                metrics = await run.world.learner.train(batch)
                state.done = step
                run.recorder.metrics(step, metrics)
                if run.preemption.asked.is_set():
                    await state.leave()
        await publish(run)


async def rl_stage(run: Run, newest: Checkpoint | None) -> None:
    """Run the RL loop from the start or from a checkpoint, with periodic checkpoints and one at the end."""
    experiment, run.doing = run.config.experiment, "the start of RL"
    stream, done = await enter_rl(run, newest)
    unfinished = newest.state.get("unfinished", ()) if newest is not None else ()
    rewarder = ControlledRewarder(run.router, run.cascade_controller)
    counted = Counted(rewarder, run.console, experiment.prompts_per_step * run.config.rollout.samples_per_prompt)
    if newest is not None:
        restore_replies(run, counted)
    controller = Controller(
        run=run.run_id,
        experiment=experiment,
        rollout=run.config.rollout,
        encode=run.prepared.codec.prompt,
        engine=run.world.workers,
        rewarder=counted,
        trainer=run.world.learner,
        weights=run.world.weights,
        recorder=run.recorder,
        batches=BatchBuilder(
            algorithm=run.config.algorithm,
            max_new_tokens=run.config.rollout.max_new_tokens,
            seed=experiment.seed,
            normalise=run.config.rewards.normalise,
            answer=run.prepared.codec.answer if run.config.algorithm.all_wrong.reference else None,
        ),
        version=run.version,
        note=run.console.note,
        mark=run.prepared.codec.formats.mark,
        dialogues=replace(run.episodes, rewarder=counted) if run.config.holds_dialogues else None,
    )
    asynchrony = experiment.asynchrony
    age, oversample = run.config.algorithm.dynamic_sampling.bounds(asynchrony.max_policy_age)
    if age or oversample > 1:
        run.experience = controller.experience = Experience(
            controller.produce,
            controller.may_train,
            stream,
            batch=experiment.prompts_per_step,
            max_policy_age=age,
            oversample=oversample,
            concurrent=asynchrony.concurrent,
            steps=experiment.steps,
            unfinished=unfinished,
        )
    if not asynchrony.in_flight:
        controller.pause = run.world.workers.pause
    replies = experiment.prompts_per_step * run.config.rollout.samples_per_prompt
    if line := feasibility(run.config.rewards.consistency, replies=replies, steps=experiment.steps):
        run.console.note(line)
    run.recorder.begin("rl", experiment.steps)
    await run.world.router.metrics()  # reset: the first step must not count the calls of the evaluations
    try:
        with run.console.phase("rl"):
            await measure(run, done)  # measurements that a preempted run skipped
            for step in range(done + 1, experiment.steps + 1):
                await rl_step(run, step, controller, rewarder, counted, stream)
        if line := run.cascade_controller.certificate_line():
            run.console.note(line)
    finally:
        if run.experience is not None:
            await run.experience.close()


async def rl_step(
    run: Run, step: int, controller: Controller, rewarder: ControlledRewarder, counted: Counted, stream: PromptStream
) -> None:
    """Run one RL step with the measurements and the checkpoint that are due after it. Raises Preempted."""
    experiment = run.config.experiment
    run.doing, before = f"step {step}", deepcopy(run.state(stream))
    counted.begin()
    metrics = await run.preemption.unless_asked(controller.step(step, stream), may_drop=lambda: controller.collecting)
    if metrics is None:
        if run.experience is not None:  # engines that share their GPU with the trainer sleep only once they are idle
            await run.experience.close()
        await leave(run, step - 1, before)
    run.version = controller.version
    in_flight = run.experience.open_draws if run.experience is not None else ()
    controlled = rewarder.step_ended(controller.recorded, in_flight)
    metrics = {**metrics, **run.waited, **controlled, **await run.world.router.metrics()}
    run.waited = {}
    check = run.preemption.unless_asked(check_scorers(run, step, counted.replies, rewarder))
    run.recorder.metrics(step, {**metrics, **(await check or {})})
    await run.checkpoints.settle(wait=False)
    await measure(run, step)  # before the save, so that the checkpoint contains the measurements
    if step % experiment.checkpoint.every == 0 or step == experiment.steps:
        await run.save(step, run.state(stream))
    if run.preemption.asked.is_set() and step < experiment.steps:
        await leave(run, step, run.state(stream))


async def measure(run: Run, step: int) -> None:
    """Run the policy evaluations that are due after this step; the first and the last are run elsewhere."""
    experiment, sage, stage = run.config.experiment, run.config.experiment.sage, f"rl-{step}"
    if not 0 < step < experiment.steps:
        return
    if experiment.eval_every and step % experiment.eval_every == 0 and stage not in run.evaluations:
        await run.preemption.unless_asked(run.evaluate(stage, step))
    if sage.scenarios and sage.every and step % sage.every == 0 and stage not in run.dialogues:
        await run.preemption.unless_asked(simulate(run, stage, step))


async def leave(run: Run, step: int, state: dict[str, Any]) -> NoReturn:
    """Save the state after `step`, unless a checkpoint has it, and end the run. Raises Preempted."""
    await run.checkpoints.settle()
    newest = await asyncio.to_thread(run.checkpoints.newest)
    if newest is None or newest.step != step:
        await run.checkpoints.save(step, run.world.learner.save, state)
    total = run.config.experiment.steps
    raise stop_error(f", step {step} of {total} is kept; {how_to_resume(run.folder, run.config)}")


async def enter_rl(run: Run, newest: Checkpoint | None) -> tuple[PromptStream, int]:
    """Prepare trainer and engines for RL: a fresh optimiser on the warmed-up weights, or a checkpoint's full state.

    Returns the order of the prompts and the number of steps already done.
    """
    experiment, world = run.config.experiment, run.world
    env = run.config.env
    order = Curriculum if env.type == "sage" and env.curriculum else PromptStream
    stream = order(run.prepared.splits.train, experiment.seed + 1, None if newest is None else newest.state["stream"])
    if newest is None:
        # RL starts from this checkpoint now, and also when the run is resumed before its first step is saved.
        start = await run.checkpoints.save(0, world.trainers.save_policy, run.state(stream))
        await asyncio.to_thread(shutil.rmtree, run.warm_ups.folder, ignore_errors=True)
    else:
        start = newest
    fresh = start.step == 0
    policy = start.path / "policy" if fresh else run.prepared.model_path
    algorithm = run.config.algorithm
    updates = experiment.steps * algorithm.epochs * algorithm.minibatches  # the schedule counts optimiser steps
    await world.learner.reset(policy, config=run.config.trainer, total_steps=updates)
    if not fresh:
        await world.learner.load(start.path)
    if newest is not None:
        run.version = newest.state["version"]
        run.evaluations.update(newest.state["evaluations"])
        run.dialogues.update(newest.state.get("dialogues", {}))
        run.checked = newest.state.get("checked", newest.step)
        run.checked_ahead = {SampleKey(**key) for key in newest.state.get("checked_ahead", ())}
        run.cascade_controller.restore(newest.state.get("cascade"))
        await run.refit.restore(newest.state.get("refits", ()))
        await publish(run)
        unfinished = newest.state.get("unfinished", ())
        await asyncio.to_thread(run.recorder.rewind, run.run_id, newest.step, unfinished, run.refit.steps)
        run.console.note(f"resume after step {newest.step}")
    return stream, start.step


async def publish(run: Run) -> None:
    """Send the trainers' weights to every engine as the next policy version."""
    run.version += 1
    await run.world.weights.sync(run.version)
