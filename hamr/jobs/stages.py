"""The stages of a training job over one world of actors: warm-up, RL, and what is measured around them."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from hamr.config.schema import Config
from hamr.controller import Controller
from hamr.data.sft import sft_batch
from hamr.data.stream import PromptStream
from hamr.evaluation.held_out import HeldOutResult, evaluate_held_out
from hamr.jobs.dialogues import simulate
from hamr.jobs.preemption import Preemption, stopped
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
    doing: str = ""
    """What is waited for when a signal arrives, for the message; empty where nothing is."""
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
            clusters=self.prepared.clusters,
            pools=self.world.pools,
            note=self.console.note,
        )

    @property
    def folder(self) -> Path:
        return self.checkpoints.folder.parent

    @property
    def warm_ups(self) -> Checkpoints:
        """What a stopped warm-up keeps."""
        return Checkpoints(self.checkpoints.folder / "warm_up")

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


@dataclass(kw_only=True)
class WarmUp:
    """Where a warm-up stands: `done` steps, the order of its samples and the generator that draws their references."""

    run: Run
    samples: PromptStream
    rng: random.Random
    done: int = 0

    @classmethod
    async def enter(cls, run: Run) -> WarmUp:
        """A new warm-up, or the one that a stopped run has kept."""
        experiment, splits = run.config.experiment, run.prepared.splits
        seed = experiment.seed if experiment.sft.seed is None else experiment.sft.seed
        kept, rng = await asyncio.to_thread(run.warm_ups.newest), random.Random(seed)
        if kept is None:
            return cls(run=run, samples=PromptStream(splits.for_sft, seed), rng=rng)
        await run.world.trainers.load(kept.path)
        run.evaluations.update(kept.state["evaluations"])
        run.dialogues.update(kept.state["dialogues"])
        version, numbers, following = kept.state["rng"]
        rng.setstate((version, tuple(numbers), following))
        run.console.note(f"resumes the warm-up after step {kept.step}")
        samples = PromptStream(splits.for_sft, seed, kept.state["stream"])
        return cls(run=run, samples=samples, rng=rng, done=kept.step)

    async def evaluate(self, stage: str) -> None:
        """Evaluate the policy, unless the run did so before it was resumed."""
        if stage in self.run.evaluations:
            return
        if await self.run.preemption.unless_asked(self.run.evaluate(stage, step=0)) is None:
            await self.leave()

    async def leave(self) -> NoReturn:
        """Keep the warm-up and end the run. Raises Preempted."""
        run, steps = self.run, self.run.config.experiment.sft.steps
        state = {"stream": self.samples.state(), "rng": self.rng.getstate()}
        state |= {"evaluations": run.evaluations, "dialogues": run.dialogues}
        await run.warm_ups.save(self.done, run.world.trainers.save, state)
        kept = f" in the warm-up, step {self.done} of {steps} is kept" if self.done else " before the first step"
        raise stopped(f"{kept}; {how_to_resume(run.folder)}")


async def warm_up(run: Run) -> None:
    """Evaluate the policy, train it on the references, and evaluate it again.

    RL has no checkpoint yet, so a stopped warm-up is kept in a folder of its own, until RL begins.
    """
    state = await WarmUp.enter(run)
    await state.evaluate("base")
    if run.config.experiment.sft.steps:
        await sft_stage(run, state)
        await state.evaluate("sft")


async def sft_stage(run: Run, state: WarmUp) -> None:
    """Next-token training on the references, so that the policy can utter an action at all."""
    sft = run.config.experiment.sft
    run.recorder.begin("sft", sft.steps)
    with run.console.phase("sft"):
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
    """The RL loop, from the start or from a checkpoint, with a checkpoint every so many steps and at the end."""
    experiment, run.doing = run.config.experiment, "the start of RL"
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
    with run.console.phase("rl"):
        await measure(run, done)  # what a run that was told to end had left out
        for step in range(done + 1, experiment.steps + 1):
            run.doing, before = f"step {step}", deepcopy(run.state(stream))
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
    """Keep the state after `step`, unless a checkpoint has it, and end the run. Raises Preempted."""
    newest = await asyncio.to_thread(run.checkpoints.newest)
    if newest is None or newest.step != step:
        await run.checkpoints.save(step, run.world.trainers.save, state)
    total = run.config.experiment.steps
    raise stopped(f", step {step} of {total} is kept; {how_to_resume(run.folder)}")


def how_to_resume(folder: Path, job: str = "train") -> str:
    return f"go on with: hamr {job} resume={folder.absolute()}"


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
        await asyncio.to_thread(shutil.rmtree, run.warm_ups.folder, ignore_errors=True)
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
