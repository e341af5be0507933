"""Time-sharing of GPUs between trainers and engines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hamr.cluster.actor_death import death_reason
from hamr.config.schema import TrainerConfig
from hamr.errors import EngineDied
from hamr.protocols import Metrics
from hamr.types import TrainBatch

if TYPE_CHECKING:
    from hamr.rollout.workers import RolloutWorkers
    from hamr.trainer.actors import TrainerGroup

log = logging.getLogger(__name__)

OFFLOAD_S = 60.0
"""Longest wait for the trainer to release memory after an error. A rank may still wait for one that failed."""


class TimeSharedTrainer:
    """Wrapper of a trainer that puts the engines on its GPUs to sleep while it needs the memory of its optimiser.

    Engines are woken up after an error too, which is raised even if they cannot wake up. After `train` they need new
    weights, which a step sends anyway, unless they `serve_adapter`: then the weights of their start wait on the host.
    """

    def __init__(self, trainer: TrainerGroup, engines: RolloutWorkers, serve_adapter: bool = False) -> None:
        self._trainer, self._engines = trainer, engines
        self._training_level = 1 if serve_adapter else 2
        self._alone = False

    @asynccontextmanager
    async def alone(self, level: int | None = None) -> AsyncIterator[None]:
        """Let the engines sleep while the body runs, for one or several calls of the trainer.

        Without a `level` it is that of training.
        """
        if self._alone:
            yield
            return
        await self._engines.sleep(level or self._training_level)
        self._alone = True
        try:
            yield
            await self._trainer.offload_states()
        except BaseException as error:
            self._alone = False
            await self._wake_up_after(error)
            raise
        self._alone = False
        await self._engines.wake_up()

    async def _wake_up_after(self, error: BaseException) -> None:
        """Make room for the engines and wake them up. Errors are logged, so that they do not replace `error`."""
        if isinstance(error, Exception) and not isinstance(error, EngineDied):
            try:
                async with asyncio.timeout(OFFLOAD_S):
                    await self._trainer.offload_states()
            except Exception as failed:
                log.warning("the trainer did not release memory after an error: %s", death_reason(failed))
        try:
            await self._engines.wake_up()
        except Exception as failed:
            log.warning("engines did not wake up after an error of the trainer: %s", death_reason(failed))

    async def train(self, batch: TrainBatch) -> Metrics:
        async with self.alone():
            return await self._trainer.train(batch)

    async def save(self, folder: Path) -> None:
        async with self.alone(level=1):
            await self._trainer.save(folder)

    async def copy_state(self, folder: Path) -> Callable[[], Awaitable[None]]:
        async with self.alone(level=1):
            return await self._trainer.copy_state(folder)

    async def load(self, folder: Path) -> None:
        async with self.alone(level=1):
            await self._trainer.load(folder)

    async def reset(self, model_path: Path, *, config: TrainerConfig, total_steps: int) -> None:
        async with self.alone(level=1):
            await self._trainer.reset(model_path, config=config, total_steps=total_steps)
