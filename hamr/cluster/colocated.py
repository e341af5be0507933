"""Time-sharing of GPUs between trainers and engines."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from hamr.protocols import Metrics, Trainer
from hamr.types import TrainBatch


class SleepingEngines(Protocol):
    """Engines that can release their GPU memory temporarily."""

    async def sleep(self) -> None: ...

    async def wake_up(self) -> None: ...


class ColocatedTrainer(Trainer, Protocol):
    """Trainer that can release the GPU memory that it caches but does not use."""

    async def release_memory(self) -> None: ...


class TimeSharedTrainer:
    """Wrapper of a trainer whose `train` puts the engines on its GPUs to sleep and wakes them up afterwards.

    Engines are woken up after an error too.
    """

    def __init__(self, trainer: ColocatedTrainer, engines: SleepingEngines) -> None:
        self._trainer, self._engines = trainer, engines

    async def train(self, batch: TrainBatch) -> Metrics:
        await self._engines.sleep()
        try:
            metrics = await self._trainer.train(batch)
            # The trainer's allocator caches the memory that the engines need again.
            await self._trainer.release_memory()
            return metrics
        finally:
            await self._engines.wake_up()

    async def save(self, folder: Path) -> None:
        await self._trainer.save(folder)

    async def load(self, folder: Path) -> None:
        await self._trainer.load(folder)
