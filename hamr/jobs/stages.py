"""The stages of a training job over one world of actors: warm-up, RL, and what is measured around them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from hamr.config.schema import Config
from hamr.controller import Controller
from hamr.data.sft import sft_batch
from hamr.data.stream import PromptStream
from hamr.errors import Preempted
from hamr.evaluation.held_out import HeldOutResult, evaluate_held_out
from hamr.jobs.dialogues import simulate
from hamr.jobs.preemption import Preemption
from hamr.jobs.preparation import Prepared
from hamr.jobs.scorer_watch import ScorerWatch
from hamr.jobs.world import World
from hamr.observability.checkpoints import Checkpoint, Checkpoints
from hamr.observability.console import Console
from hamr.observability.recorder import RunRecorder
from hamr.protocols import Rewarder
from hamr.routing.steering import Steered, Steering, Unsteered
from hamr.types import Reply, RewardRecord, Rollout, ServiceSample


class Counted:
    """A rewarder that shows on the console how many responses of a batch have been scored, and counts the replies."""

    def __init__(self, rewarder: Rewarder, console: Console, total: int) -> None:
        self._rewarder, self._console, self._total = rewarder, console, total
        self._done = 0
        self.said: Counter[str] = Counter()

    async def score(self, sample: ServiceSample, rollout: Rollout) -> RewardRecord:
        record = await self._rewarder.score(sample, rollout)
        self._done += 1
        if isinstance(record.action, Reply):
            self.said[record.action.content] += 1
        self._console.progress(self._done, max(self._done, self._total), "responses scored")
        return record

    def begin(self) -> None:
        """Count from 0 again."""
        self._done = 0


@dataclass(kw_only=True)
class Run:
    """One training job while it runs. `evaluations` and `dialogues` fill up as the stages end."""

    prepared: Prepared
    world: World
    recorder: RunRecorder
    checkpoints: Checkpoints
    console: Console
    run_id: str
    preemption: Preemption
    version: int = 0
    evaluations: dict[str, Any] = field(default_factory=dict)
    dialogues: dict[str, Any] = field(default_factory=dict)
    steering: Steering = field(init=False)
    scorers: ScorerWatch = field(init=False)

    def __post_init__(self) -> None:
        self.steering = Steering(self.config.rewards.consistency)
        self.scorers = ScorerWatch(
            config=self.config,
            splits=self.prepared.splits,
            truth=self.prepared.truth,
            pools=self.world.pools,
            note=self.console.note,
        )

    @property
    def folder(self) -> Path:
        return self.checkpoints.folder.parent

    @property
    def config(self) -> Config:
        return self.prepared.config

    def state(self, stream: PromptStream) -> dict[str, Any]:
        """What a checkpoint holds beside the trainers' own files."""
        state = {"version": self.version, "stream": stream.state(), "evaluations": self.evaluations}
        state["dialogues"] = self.dialogues
        return {**state, "cascade": self.steering.state()}

    async def evaluate(self, stage: str, step: int) -> HeldOutResult:
        """Responses to the test split with the weights that the engines hold, and whole dialogues where they are asked
        for."""
        how = self.config.experiment.evaluation
        samples = self.prepared.splits.test[: self.config.data.max_eval]
        with self.console.phase(f"evaluation {stage}"):
            result = await evaluate_held_out(
                samples,
                run=self.run_id,
                stage=stage,
                step=step,
                encode=self.prepared.codec.prompt,
                engine=self.world.workers,
                rewarder=Counted(Unsteered(self.world.router), self.console, len(samples) * how.samples),
                max_new_tokens=self.config.rollout.max_new_tokens,
                temperature=how.temperature,
                top_p=self.config.rollout.top_p,
                responses=how.samples,
                formats=self.prepared.codec.formats,
                stop_at_answer=how.stop_at_answer,
                truth=self.prepared.truth,
            )
        self.recorder.evaluation(stage, step, result.metrics(stage), result.records)
        self.evaluations[stage] = result.as_dict()
        sage = self.config.experiment.sage
        if sage.scenarios and stage in sage.stages:
            await simulate(self, stage, step)
        return result


async def sft_stage(run: Run) -> None:
    """Next-token training on the references, so that the policy can utter an action at all."""
    experiment, sft = run.config.experiment, run.config.experiment.sft
    seed = experiment.seed if sft.seed is None else sft.seed
    samples, rng = PromptStream(run.prepared.splits.for_sft, seed), random.Random(seed)
    run.recorder.begin("sft", sft.steps)
    with run.console.phase("sft"):
        for step in range(1, sft.steps + 1):
            batch = sft_batch(
                samples.take(sft.samples_per_step),
                run.prepared.codec.prompt,
                run.prepared.codec.answer,
                rng,
                references=sft.references_per_sample,
                turns=sft.turns,
                aggregation=sft.loss_aggregation,
            )
            run.recorder.metrics(step, await run.world.learner.train(batch))
        await publish(run)


async def rl_stage(run: Run, newest: Checkpoint | None) -> None:
    """The RL loop, from the start or from a checkpoint, with a checkpoint every so many steps and at the end."""
    experiment = run.config.experiment
    stream, done = await enter_rl(run, newest)
    rewarder = Steered(run.world.router, run.steering)
    counted = Counted(rewarder, run.console, experiment.prompts_per_step * run.config.rollout.samples_per_prompt)
    controller = Controller(
        run=run.run_id,
        experiment=experiment,
        rollout=run.config.rollout,
        algorithm=run.config.algorithm,
        encode=run.prepared.codec.prompt,
        engine=run.world.workers,
        rewarder=counted,
        trainer=run.world.learner,
        weights=run.world.weights,
        recorder=run.recorder,
        version=run.version,
        note=run.console.note,
        mark=run.prepared.codec.formats.mark,
        answer=run.prepared.codec.answer if run.config.algorithm.all_wrong.reference else None,
    )
    run.recorder.begin("rl", experiment.steps)
    await run.world.router.metrics()  # what the evaluations counted is not the first step's
    with run.console.phase("rl"), run.preemption.patiently():
        await measure(run, done)  # what a run that was told to end had left out
        for step in range(done + 1, experiment.steps + 1):
            before = deepcopy(run.state(stream))
            counted.begin()
            metrics = await run.preemption.unless_asked(
                controller.step(step, stream), may_drop=lambda: controller.collecting
            )
            if metrics is None:
                await leave(run, step - 1, before)
            run.version = controller.version
            metrics = {**metrics, **rewarder.step_ended(), **await run.world.router.metrics()}
            alarm = await _check_scorers(run, step, counted.said)
            run.recorder.metrics(step, {**metrics, **alarm})
            await measure(run, step)  # before it is kept: a checkpoint holds what has been measured
            if step % experiment.checkpoint.every == 0 or step == experiment.steps:
                await run.checkpoints.save(step, run.world.trainers.save, run.state(stream))
            if run.preemption.asked.is_set() and step < experiment.steps:
                await leave(run, step, run.state(stream))


async def _check_scorers(run: Run, step: int, said: Counter[str]) -> dict[str, float]:
    """What is due of the scorers after this step, on the replies since the last time."""
    every = run.config.scorers.check_every
    if not every or step % every:
        return {}
    found = await run.scorers.of_replies(said)
    said.clear()
    return found


async def measure(run: Run, step: int) -> None:
    """What is due of the policy after this step, on the way; its start and its end are measured elsewhere."""
    experiment, sage, stage = run.config.experiment, run.config.experiment.sage, f"rl-{step}"
    if not 0 < step < experiment.steps:
        return
    if experiment.eval_every and step % experiment.eval_every == 0 and stage not in run.evaluations:
        await run.preemption.unless_asked(run.evaluate(stage, step))
    if sage.scenarios and sage.every and step % sage.every == 0 and stage not in run.dialogues:
        await run.preemption.unless_asked(simulate(run, stage, step))


async def leave(run: Run, step: int, state: dict[str, Any]) -> NoReturn:
    """Keeps what stands after `step`, unless that has been done, and ends the run. Raises Preempted."""
    newest = await asyncio.to_thread(run.checkpoints.newest)
    if newest is None or newest.step != step:
        await run.checkpoints.save(step, run.world.trainers.save, state)
    total = run.config.experiment.steps
    raise Preempted(f"stopped by SIGTERM, step {step} of {total} is kept; go on with: {resume_line(run.folder)}")


def resume_line(folder: Path) -> str:
    return f"hamr train resume={folder}"


async def enter_rl(run: Run, newest: Checkpoint | None) -> tuple[PromptStream, int]:
    """Trainer and engines as RL needs them: fresh optimiser on the warmed-up weights, or all of a checkpoint's state.

    Returns the prompts' order and the number of steps already done.
    """
    experiment, trainers = run.config.experiment, run.world.trainers
    seed = experiment.seed + 1
    if newest is None:
        stream = PromptStream(run.prepared.splits.train, seed)
        # RL starts from this one in either case: now, and when the run is resumed before its first step is kept.
        start = await run.checkpoints.save(0, trainers.save_policy, run.state(stream))
    else:
        stream, start = PromptStream(run.prepared.splits.train, seed, newest.state["stream"]), newest
    fresh = start.step == 0
    policy = start.path / "policy" if fresh else run.prepared.model_path
    algorithm = run.config.algorithm
    updates = experiment.steps * algorithm.epochs * algorithm.minibatches  # the schedule counts the optimiser's steps
    await trainers.reset(policy, config=run.config.trainer, total_steps=updates)
    if not fresh:
        await trainers.load(start.path)
    if newest is not None:
        run.version = newest.state["version"]
        run.evaluations.update(newest.state["evaluations"])
        run.dialogues.update(newest.state.get("dialogues", {}))
        run.steering.restore(newest.state.get("cascade"))
        await publish(run)
        run.recorder.rewind(run.run_id, newest.step)
        run.console.note(f"goes on after step {newest.step}")
    return stream, start.step


async def publish(run: Run) -> None:
    """The trainers' weights into every engine, as the next policy version."""
    run.version += 1
    await run.world.weights.sync(run.version)
