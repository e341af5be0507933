"""One warm hamr world that makes a step of `hamr.controller` each time it is asked for one.

Real parts: a Ray session of its own, a vLLM engine in a rollout worker, a DeepSpeed trainer, weights through shared
memory. Only the reward is Python in this process, as it is on TRL's side. `step_time.py` starts it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from workload import Channel, Work, reward

from hamr.algorithms.batch import BatchBuilder
from hamr.cluster.session import ray_session
from hamr.config.algorithm import AlgorithmConfig, DynamicSamplingConfig, ImportanceConfig
from hamr.config.experiment import ExperimentConfig
from hamr.config.pools import EngineConfig
from hamr.config.schema import ClusterConfig, ModelConfig, RolloutConfig, TrainerConfig
from hamr.controller import Controller
from hamr.protocols import Metrics
from hamr.rollout.workers import RolloutWorkers
from hamr.trainer.actors import TrainerGroup
from hamr.trainer.weight_sync import SharedMemorySync
from hamr.types import Component, Reference, Reply, RewardRecord, Rollout, Scored, ServiceSample


@dataclass
class PythonReward:
    """protocols.Rewarder without a model. Keeps what is needed to check that the work was done."""

    seconds: float = 0.0
    lengths: list[int] = field(default_factory=list)
    prompt_lengths: list[int] = field(default_factory=list)

    async def score(self, sample: ServiceSample, rollout: Rollout) -> RewardRecord:
        start = time.perf_counter()
        outcome = Scored(value=reward(rollout.text))
        self.lengths.append(len(rollout.token_ids))
        self.prompt_lengths.append(len(rollout.prompt_ids))
        self.seconds += time.perf_counter() - start
        return RewardRecord(
            key=rollout.key,
            total=outcome,
            components=(Component(name="distinct_words", outcome=outcome, weight=1.0),),
            action=Reply(content=rollout.text),
            band="none",
        )


class NoRecorder:
    """protocols.Recorder that keeps nothing: TRL's side logs nothing either."""

    def metrics(self, step: int, values: Metrics) -> None: ...

    def records(self, step: int, records: Sequence[RewardRecord]) -> None: ...

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None: ...


@dataclass
class Prompts:
    """The work's prompts in their order (the stream that a run uses would shuffle them)."""

    work: Work
    ids: dict[str, tuple[int, ...]] = field(default_factory=dict)
    step: int = 0

    def take(self, n: int) -> list[ServiceSample]:
        entries = self.work.prompts(self.step)
        samples = []
        for i, entry in enumerate(entries[:n]):
            name = f"{self.step}-{i}"
            self.ids[name] = tuple(entry["ids"])
            answer = (Reference(action=Reply(content="")),)
            samples.append(ServiceSample(id=name, ticket={}, policy="", tools=(), history=(), references=answer))
        self.step += 1
        return samples

    def encode(self, sample: ServiceSample) -> tuple[int, ...]:
        return self.ids[sample.id]

    def learn(self, sample: ServiceSample, score: float) -> None:
        """The order is fixed."""


@dataclass(frozen=True, kw_only=True)
class Sections:
    """The configuration of the step, in hamr's own sections."""

    model: ModelConfig
    rollout: RolloutConfig
    trainer: TrainerConfig
    algorithm: AlgorithmConfig
    experiment: ExperimentConfig

    @classmethod
    def of(cls, work: Work) -> Sections:
        shape, options = work.shape, work.options
        # A few tokens of room: the context also has to hold the prompt rounded up to whole blocks.
        context = shape.prompt_tokens + shape.new_tokens + 2 * options["block_size"]
        engine = EngineConfig(
            threads=work.threads,
            max_num_seqs=shape.responses,
            kv_cache_mb=options["kv_cache_mb"],
            block_size=options["block_size"],
            num_cpus=1,
        )
        return cls(
            model=ModelConfig(path=work.model, dtype="bfloat16", max_context=context),
            rollout=RolloutConfig(
                workers=1,
                samples_per_prompt=shape.samples,
                max_new_tokens=shape.new_tokens,
                check_logprobs=options["check_logprobs"],
                engine=engine,
            ),
            trainer=TrainerConfig(
                ranks=1,
                zero_stage=options["zero_stage"],
                dtype="bfloat16",
                tokens_per_microbatch=options["tokens_per_microbatch"],
                attention=options["attention"],
                learning_rate=work.learning_rate,
                weight_decay=0.0,
                threads=work.threads,
                num_cpus=1,
            ),
            algorithm=AlgorithmConfig(
                clip_low=work.clip_low,
                clip_high=work.clip_high,
                entropy_coef=work.entropy_coef,
                # Refilling would make the work depend on the rewards.
                dynamic_sampling=DynamicSamplingConfig(enabled=False),
                importance=ImportanceConfig(cap=None),
            ),
            experiment=ExperimentConfig(prompts_per_step=shape.prompts, steps=options["steps"]),
        )


@asynccontextmanager
async def world(work: Work) -> AsyncIterator[tuple[Controller, Prompts, PythonReward]]:
    """Trainer and rollout worker, started together and stopped at the end."""
    sections, model_path = Sections.of(work), Path(work.model)
    trainers, workers = await asyncio.gather(
        TrainerGroup.start(
            sections.trainer,
            sections.algorithm,
            sections.model,
            model_path,
            total_steps=sections.experiment.steps,
            seed=0,
            temperature=sections.rollout.temperature,
        ),
        RolloutWorkers.start(sections.rollout, sections.model, model_path, 0),
    )
    weights = SharedMemorySync(trainers, workers)
    prompts, rewarder = Prompts(work), PythonReward()
    controller = Controller(
        run="benchmark",
        experiment=sections.experiment,
        rollout=sections.rollout,
        encode=prompts.encode,
        engine=workers,
        rewarder=rewarder,
        trainer=trainers,
        weights=weights,
        recorder=NoRecorder(),
        batches=BatchBuilder(
            algorithm=sections.algorithm,
            max_new_tokens=sections.rollout.max_new_tokens,
            seed=sections.experiment.seed,
        ),
    )
    try:
        yield controller, prompts, rewarder
    finally:
        workers.shutdown()
        await trainers.shutdown()
        await weights.close()


async def step(controller: Controller, number: int, prompts: Prompts, rewarder: PythonReward) -> dict[str, Any]:
    """One step, timed. Rewards are computed while siblings are generated: their own seconds are taken out."""
    rewarder.seconds, rewarder.lengths, rewarder.prompt_lengths = 0.0, [], []
    start = time.perf_counter()
    metrics = await controller.step(number, prompts)  # type: ignore[arg-type]
    seconds = time.perf_counter() - start
    phases = {
        "generation": metrics["timing/step/rollout_score"] - rewarder.seconds,
        "scoring": rewarder.seconds,
        "sync": metrics["timing/step/sync"],
        "training": metrics["timing/step/train"],
    }
    return {
        "seconds": seconds,
        "phases": phases,
        "lengths": rewarder.lengths,
        "prompt_lengths": rewarder.prompt_lengths,
        "metrics": {name: value for name, value in metrics.items() if isinstance(value, int | float)},
    }


async def serve(channel: Channel, work: Work) -> None:
    versions = {name: version(name) for name in ("deepspeed", "ray", "torch", "transformers")}
    async with world(work) as (controller, prompts, rewarder):
        channel.send(ready=True, versions=versions)
        number = 0
        while await asyncio.to_thread(channel.wait):
            channel.send(**await step(controller, number, prompts, rewarder))
            number += 1


def main() -> None:
    channel = Channel()
    # TRL's side may fill the memory beyond the share at which Ray would kill an actor of this one.
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    with ray_session(ClusterConfig()):
        asyncio.run(serve(channel, Work.from_json(sys.argv[1])))


if __name__ == "__main__":
    main()
