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


class TakingTurns:
    """A trainer's `train` for which the engines on its GPUs sleep, and wake up again whatever came of it."""

    def __init__(self, trainer: Trainer, engines: Sleepers) -> None:
        self._trainer, self._engines = trainer, engines

    async def train(self, batch: TrainBatch) -> Metrics:
        await self._engines.sleep()
        try:
            return await self._trainer.train(batch)
        finally:
            await self._engines.wake_up()

    async def save(self, folder: Path) -> None:
        await self._trainer.save(folder)

    async def load(self, folder: Path) -> None:
        await self._trainer.load(folder)
