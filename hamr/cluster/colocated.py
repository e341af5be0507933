"""Trainers and engines that take turns on the same GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from hamr.protocols import Metrics, Trainer
from hamr.types import TrainBatch


class Sleepers(Protocol):
    """Engines that can give their memory away for a while."""

    async def sleep(self) -> None: ...

    async def wake_up(self) -> None: ...


class Lodger(Trainer, Protocol):
    """A trainer that can give back what of its GPUs' memory it keeps but does not use."""

    async def release_memory(self) -> None: ...


class TakingTurns:
    """A trainer's `train` for which the engines on its GPUs sleep, and wake up again whatever came of it."""

    def __init__(self, trainer: Lodger, engines: Sleepers) -> None:
        self._trainer, self._engines = trainer, engines

    async def train(self, batch: TrainBatch) -> Metrics:
        await self._engines.sleep()
        try:
            metrics = await self._trainer.train(batch)
            # The trainer's allocator has taken the room that the engines want back, and would keep it.
            await self._trainer.release_memory()
            return metrics
        finally:
            await self._engines.wake_up()

    async def save(self, folder: Path) -> None:
        await self._trainer.save(folder)

    async def load(self, folder: Path) -> None:
        await self._trainer.load(folder)
