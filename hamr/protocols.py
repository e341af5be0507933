"""What the controller asks of the world. Actors implement these on Ray, tests with scripted fakes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hamr.types import Action, Answer, Question, RewardRecord, Rollout, SampleKey, ServiceSample, TrainBatch

Metrics = Mapping[str, float]
PromptEncoder = Callable[[ServiceSample], tuple[int, ...]]
"""A sample's whole prompt as token ids, generation prompt included."""
AnswerEncoder = Callable[[Action], tuple[int, ...]]
"""An action as the policy should utter it, end-of-sequence token included."""
Ask = Callable[[Question], Awaitable[Answer]]
"""A pool: never raises for a scorer's failure, which is in the answer."""


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How to sample. `max_new_tokens` in tokens; temperature 0 means greedy."""

    temperature: float = 1.0
    top_p: float = 1.0
    max_new_tokens: int = 64
    stop: tuple[str, ...] = ()
    mark: str = ""
    """A text that ends what somebody waits for: tokens and seconds up to it are taken (`Rollout.answer_tokens`)."""


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """N responses to one prompt: one (key, seed) per response."""

    prompt_ids: tuple[int, ...]
    keys: tuple[SampleKey, ...]
    seeds: tuple[int, ...]
    sampling: SamplingConfig


class RolloutEngine(Protocol):
    """Generates. Yields each response the moment it ends, in no particular order."""

    def generate(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[Rollout]: ...


class Rewarder(Protocol):
    """Scores one response. Never raises for a scorer's failure: that is a typed outcome in the record."""

    async def score(self, sample: ServiceSample, rollout: Rollout) -> RewardRecord: ...


class Trainer(Protocol):
    """One DeepSpeed world. `version` counts optimiser steps of the current stage."""

    async def train(self, batch: TrainBatch) -> Metrics: ...

    async def save(self, folder: Path) -> None: ...

    async def load(self, folder: Path) -> None: ...


class WeightSync(Protocol):
    """Brings the trainer's weights into every rollout engine as policy `version`."""

    async def sync(self, version: int) -> Metrics: ...


class Recorder(Protocol):
    """Takes what there is to see: metrics of a step, and the records of every scored response."""

    def metrics(self, step: int, values: Metrics) -> None: ...

    def records(self, step: int, records: Sequence[RewardRecord]) -> None: ...

    def samples(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None: ...
