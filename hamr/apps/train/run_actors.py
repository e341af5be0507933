"""All Ray actors of a run, started and stopped together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from hamr.apps.shared.preparation import Prepared, shared_bytes
from hamr.cluster.colocated import TimeSharedTrainer
from hamr.cluster.nodes import Reservation, release, reserve_learners
from hamr.cluster.session import ends_at_once
from hamr.pools.client import PoolClient
from hamr.pools.deployment import start_pools, stop_pools
from hamr.pools.router_actor import RouterClient
from hamr.rollout.workers import RolloutWorkers
from hamr.security.functions import FunctionSource
from hamr.trainer.actors import TrainerGroup
from hamr.trainer.weight_sync import AdapterSync, DeviceSync, SharedMemorySync

STAGES = 2
"""Stages of a run that train an adapter, which are joined: warm-up and RL."""


@dataclass(frozen=True, kw_only=True)
class RunActors:
    """The actors of one run. `pools` queries a pool directly, bypassing the router."""

    run: str
    trainers: TrainerGroup
    workers: RolloutWorkers
    router: RouterClient
    weights: DeviceSync | SharedMemorySync | AdapterSync
    pools: dict[str, PoolClient]
    places: tuple[Reservation | None, ...] = ()

    @cached_property
    def learner(self) -> TrainerGroup | TimeSharedTrainer:
        """The trainers as the run uses them; engines on the same GPUs sleep while they need the memory."""
        if not self.workers.config.colocated:
            return self.trainers
        return TimeSharedTrainer(self.trainers, self.workers, serve_adapter=isinstance(self.weights, AdapterSync))

    def alone(self) -> AbstractAsyncContextManager[None]:
        """Let engines on the trainers' GPUs sleep over several calls of `learner`; a sync must follow."""
        return self.learner.alone() if isinstance(self.learner, TimeSharedTrainer) else nullcontext()

    async def stop(self) -> None:
        """Stop every actor and pool. Actors that are already dead are ignored.

        When a signal ends a local Ray session, the session stops them.
        """
        if ends_at_once():
            return
        self.workers.shutdown()
        await self.trainers.shutdown()
        if isinstance(self.weights, SharedMemorySync):
            await self.weights.close()
        await asyncio.gather(*(pool.close() for pool in self.pools.values()))
        await self.router.shutdown()
        await stop_pools(self.run)
        for place in self.places:
            release(place)


async def start_run_actors(
    prepared: Prepared, model_paths: dict[str, Path], run: str, note: Callable[[str], None] = lambda line: None
) -> RunActors:
    """Reserve placements and start all actors of a run.

    Trainers, rollout workers and pools start concurrently, except that workers on the trainers' GPUs start after the
    trainers, and pools with a share of a GPU after these. The router starts last because it queries the pools. If one
    part fails to start, the others are stopped.
    """
    config, transfer = prepared.config, prepared.config.rollout.transfer
    for_trainers, for_workers = await reserve_learners(config, config.cluster.start_timeout_s)
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
            place=for_trainers,
            loss=None if (loss := config.algorithm.loss) is None else FunctionSource.of_config("algorithm.loss", loss),
            exports=transfer == "ipc",
            asynchronous=config.experiment.checkpoint.asynchronous,
            start_timeout_s=config.cluster.start_timeout_s,
        )
    )

    async def start_workers() -> RolloutWorkers:
        if config.rollout.colocated:
            # vLLM profiles GPU memory at start and fails if a trainer frees some of it meanwhile.
            await (await trainers).offload_states()
        return await RolloutWorkers.start(
            config.rollout,
            config.model,
            prepared.model_path,
            config.experiment.seed,
            place=for_workers,
            adapter_rank=STAGES * lora.rank if (lora := config.trainer.lora) and transfer == "adapter" else 0,
            start_timeout_s=config.cluster.start_timeout_s,
        )

    async def start_all_pools() -> None:
        if config.rollout.colocated and any(0 < pool.engine.num_gpus < 1 for pool in config.pools.values()):
            await workers
        await start_pools(config.pools, model_paths, run=run, timeout_s=config.cluster.start_timeout_s, note=note)

    workers = asyncio.create_task(start_workers())
    pools = asyncio.create_task(start_all_pools())
    try:
        await asyncio.gather(trainers, workers, pools)
        sync = {"shared_memory": SharedMemorySync, "adapter": AdapterSync}.get(transfer, DeviceSync)
        weights = sync(trainers.result(), workers.result())
        if isinstance(weights, SharedMemorySync):
            elsewhere = config.cluster.address is not None
            await weights.open(shared_bytes(config, prepared.model_path) if elsewhere else 0)
        router = await RouterClient.start(
            config.rewards, config.pools, config.router, prepared.model_path, prepared.codec.formats, run
        )
    except BaseException:
        await _stop_started(trainers, workers, pools, run=run)
        release(for_trainers)
        release(for_workers)
        raise
    return RunActors(
        run=run,
        trainers=trainers.result(),
        workers=workers.result(),
        router=router,
        weights=weights,
        pools={name: PoolClient(name, pool, run) for name, pool in config.pools.items()},
        places=(for_trainers, for_workers),
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
