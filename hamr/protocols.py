"""Interfaces of the controller's dependencies. Actors implement them on Ray, scripted fakes in tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from hamr.types import (
    Action,
    Answer,
    Question,
    RewardRecord,
    Rollout,
    RolloutGroup,
    SampleKey,
    ServiceSample,
    TrainBatch,
)

Metrics = Mapping[str, float]
PromptEncoder = Callable[[ServiceSample], tuple[int, ...]]
"""Encodes a sample's whole prompt as token ids, generation prompt included."""
AnswerEncoder = Callable[[Action], tuple[int, ...]]
"""Encodes an action as a completion of the policy, end-of-sequence token included."""
Ask = Callable[[Question], Awaitable[Answer]]
"""Asks a pool. Never raises for a scorer's failure; the answer contains it."""


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Sampling parameters. `max_new_tokens` is in tokens; temperature 0 means greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_new_tokens: int = 64
    stop: tuple[str, ...] = ()
    mark: str = ""
    """Text that ends the answer proper. Tokens and seconds up to it are recorded (`Rollout.answer_tokens`)."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further parameters of vLLM's `SamplingParams`."""


PROBE_RUN = "logprob-check"
"""Run in the keys of the tokens that the weight transfer compares after a sync. They start before all other requests,
and during a pause."""


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """Request for N responses to one prompt, with one (key, seed) per response."""

    prompt_ids: tuple[int, ...]
    keys: tuple[SampleKey, ...]
    seeds: tuple[int, ...]
    sampling: SamplingConfig


class RolloutEngine(Protocol):
    """Response generator. Yields each response as soon as it ends, in no particular order."""

    def generate(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[Rollout]: ...


class Rewarder(Protocol):
    """Scores one response. Never raises for a scorer's failure, which is a typed outcome in the record."""

    async def score(self, sample: ServiceSample, rollout: Rollout) -> RewardRecord: ...


class Dialogues(Protocol):
    """Holds N dialogues with the customer of each sample, and scores their turns."""

    async def hold(
        self, samples: Sequence[ServiceSample], requests: Sequence[GenerationRequest]
    ) -> list[RolloutGroup]: ...


class Trainer(Protocol):
    """Group of DeepSpeed ranks. `version` counts optimiser steps of the current stage."""

    async def train(self, batch: TrainBatch) -> Metrics: ...

    async def save(self, folder: Path) -> None: ...

    async def load(self, folder: Path) -> None: ...


class WeightSync(Protocol):
    """Copies the trainer's weights into every rollout engine as policy `version`."""

    async def sync(self, version: int) -> Metrics: ...


class Recorder(Protocol):
    """Sink for a run's output: metrics of a step, and the records of every scored response."""

    def metrics(self, step: int, values: Metrics) -> None: ...

    def records(self, step: int, records: Sequence[RewardRecord]) -> None: ...

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None: ...
