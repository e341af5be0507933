"""Everything of a run that lives on Ray: started together, stopped together."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hamr.actors.pool_client import PoolClient
from hamr.actors.pools import start_pools, stop_pools
from hamr.actors.rollout import RolloutWorkers
from hamr.actors.router import RouterClient
from hamr.actors.trainer import TrainerGroup
from hamr.actors.weights import NcclSync, SharedMemorySync
from hamr.jobs.preparation import Prepared


@dataclass(frozen=True, kw_only=True)
class World:
    """The actors of one run. `pools` asks a pool directly, past the router."""

    run: str
    trainers: TrainerGroup
    workers: RolloutWorkers
    router: RouterClient
    weights: NcclSync | SharedMemorySync
    pools: dict[str, PoolClient]

    async def stop(self) -> None:
        """Ends every actor and pool; one that is already dead is no error."""
        if isinstance(self.weights, SharedMemorySync):
            self.weights.close()
        self.workers.shutdown()
        await self.trainers.shutdown()
        await asyncio.gather(*(pool.close() for pool in self.pools.values()))
        await self.router.shutdown()
        await stop_pools(self.run)


async def started(prepared: Prepared, model_paths: dict[str, Path], run: str) -> World:
    """Trainers, rollout workers and pools at once; then the router, which asks the pools.

    Whatever started is stopped again when a part cannot start.
    """
    config = prepared.config
    sft = config.experiment.sft
    warm_up = {"learning_rate": sft.learning_rate, "schedule": sft.schedule, "warmup_frac": sft.warmup_frac}
    trainers = asyncio.create_task(
        TrainerGroup.start(
            config.trainer.model_copy(update=warm_up),
            config.algorithm,
            config.model,
            prepared.model_path,
            total_steps=max(1, sft.steps),
            seed=config.experiment.seed,
            temperature=config.rollout.temperature,
        )
    )
    workers = asyncio.create_task(
        RolloutWorkers.start(config.rollout, config.model, prepared.model_path, config.experiment.seed)
    )
    pools = asyncio.create_task(
        start_pools(config.pools, model_paths, run=run, timeout_s=config.cluster.start_timeout_s)
    )
    try:
        await asyncio.gather(trainers, workers, pools)
        router = await RouterClient.start(
            config.rewards, config.pools, config.router, prepared.model_path, config.model.response_format, run
        )
    except BaseException:
        await _stop_started(trainers, workers, pools, run=run)
        raise
    sync = NcclSync if config.rollout.transfer == "nccl" else SharedMemorySync
    return World(
        run=run,
        trainers=trainers.result(),
        workers=workers.result(),
        router=router,
        weights=sync(trainers.result(), workers.result()),
        pools={name: PoolClient(name, pool, run) for name, pool in config.pools.items()},
    )


async def _stop_started(*tasks: asyncio.Task[Any], run: str) -> None:
    for task in tasks:
        task.cancel()
    for done in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(done, TrainerGroup):
            await done.shutdown()
        if isinstance(done, RolloutWorkers):
            done.shutdown()
    await stop_pools(run)
