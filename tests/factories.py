"""Scripted parts of a controller, and samples for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from hamr.algorithms.batch import BatchBuilder
from hamr.config.algorithm import AlgorithmConfig
from hamr.config.experiment import ExperimentConfig
from hamr.config.faults import UnscoredConfig
from hamr.config.schema import RolloutConfig
from hamr.controller import Controller
from hamr.protocols import GenerationRequest
from hamr.types import (
    Component,
    Outcome,
    Reference,
    Reply,
    RewardRecord,
    Rollout,
    Scored,
    ServiceSample,
    TrainBatch,
    VersionSpan,
)


def sample(i: int) -> ServiceSample:
    """Return a decision point with one reference, `s<i>`."""
    return ServiceSample(
        id=f"s{i}", ticket={}, policy="", tools=(), history=(), references=(Reference(action=Reply(content="ok")),)
    )


class ScriptedEngine:
    """Yields the responses of a request last to first, so that order is never taken for granted."""

    def __init__(self, tokens: int = 3) -> None:
        self.tokens = tokens
        self.requests: list[GenerationRequest] = []
        self.open = 0

    async def generate(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[Rollout]:
        self.requests += requests
        for request in requests:
            for key, seed in reversed(list(zip(request.keys, request.seeds, strict=True))):
                self.open += 1
                yield Rollout(
                    key=key,
                    prompt_ids=request.prompt_ids,
                    token_ids=tuple(range(self.tokens)),
                    logprobs=(-0.5,) * self.tokens,
                    text=f"{key.prompt}/{key.sample}",
                    finish_reason="stop",
                    versions=(VersionSpan(version=0, start=0, end=self.tokens),),
                    seed=seed,
                )
                await asyncio.sleep(0)


class ScriptedRewarder:
    """Gives each response the outcome that `reward` returns, as its only component."""

    def __init__(self, reward: Callable[[Rollout], Outcome]) -> None:
        self.reward = reward

    async def score(self, sample: ServiceSample, rollout: Rollout) -> RewardRecord:
        assert rollout.key.prompt == sample.id
        outcome = self.reward(rollout)
        component = Component(name="consistency", outcome=outcome, weight=1.0)
        return RewardRecord(key=rollout.key, total=outcome, components=(component,), action=None, band="none")


class ScriptedTrainer:
    """Collects the batches."""

    def __init__(self) -> None:
        self.batches: list[TrainBatch] = []

    async def train(self, batch: TrainBatch) -> dict[str, float]:
        self.batches.append(batch)
        return {"policy/loss": 0.0}

    async def save(self, folder: object) -> None: ...

    async def load(self, folder: object) -> None: ...


class ScriptedSync:
    """Collects the versions of the weights."""

    def __init__(self) -> None:
        self.versions: list[int] = []

    async def sync(self, version: int) -> dict[str, float]:
        self.versions.append(version)
        return {}


class ListRecorder:
    """Keeps the records, and drops the rest."""

    def __init__(self) -> None:
        self.kept: list[RewardRecord] = []

    def metrics(self, step: int, values: object) -> None: ...

    def records(self, step: int, records: Sequence[RewardRecord]) -> None:
        self.kept += records

    def samples(self, step: int, rows: object) -> None: ...


def build_controller(
    engine: object,
    rewarder: object,
    *,
    trainer: ScriptedTrainer | None = None,
    weights: object | None = None,
    prompts: int = 2,
    n: int = 4,
    algorithm: AlgorithmConfig | None = None,
    unscored: UnscoredConfig | None = None,
    dialogues: object | None = None,
) -> Controller:
    """Return a controller of `prompts` x `n` responses of 8 tokens at most, with scripted parts and a ListRecorder."""
    return Controller(
        run="r",
        experiment=ExperimentConfig(prompts_per_step=prompts, seed=1, unscored=unscored or UnscoredConfig()),
        rollout=RolloutConfig(samples_per_prompt=n, max_new_tokens=8),
        encode=lambda s: (1, 2, 3),
        engine=engine,
        rewarder=rewarder,
        trainer=trainer or ScriptedTrainer(),
        weights=weights or ScriptedSync(),
        recorder=ListRecorder(),
        batches=BatchBuilder(algorithm=algorithm or AlgorithmConfig(), max_new_tokens=8, seed=1),
        dialogues=dialogues,
    )


def build(
    reward: Callable[[Rollout], Outcome], **settings: Any
) -> tuple[Controller, ScriptedEngine, ScriptedTrainer, ListRecorder]:
    """Return a controller with a ScriptedEngine and a ScriptedRewarder, and its parts."""
    controller = build_controller(ScriptedEngine(), ScriptedRewarder(reward), **settings)
    return controller, controller.engine, controller.trainer, controller.recorder


def by_index(rollout: Rollout) -> Outcome:
    """Return 0 and 1 in turn, so that every group has a signal."""
    return Scored(value=float(rollout.key.sample % 2))
