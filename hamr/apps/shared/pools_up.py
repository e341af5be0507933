"""Pools started for the duration of one job that queries models without a training run."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hamr import signals
from hamr.config.pools import PoolConfig
from hamr.config.schema import Config
from hamr.data.splits import Splits
from hamr.errors import BadInput
from hamr.protocols import Ask

Result = TypeVar("Result")
PoolWork = Callable[[Mapping[str, Ask]], Coroutine[Any, Any, Result]]
"""The work to do with the pools, which are given by name."""


def known_pool(config: Config, key: str, name: str) -> PoolConfig:
    """Return the section of a pool. `key` is the option that named it. Raises BadInput if there is none."""
    if name not in config.pools:
        raise BadInput(key, name, f"no such pool; there are: {', '.join(sorted(config.pools))}")
    return config.pools[name]


def writing_pool(config: Config, key: str, name: str) -> str:
    """Return `name` if it is a pool that can generate text. `key` is the option that named it. Raises BadInput."""
    pool = known_pool(config, key, name)
    if pool.role == "reranker":
        raise BadInput(key, name, "is a reranker and cannot write; name a pool with role judge or grader")
    if pool.compares:
        raise BadInput(key, name, "compares two texts and cannot write; name a pool with a language model")
    if pool.finetune:
        raise BadInput(key, name, "is fine-tuned to give verdicts and cannot write; name an untrained pool")
    return name


def judging_pool(config: Config, key: str, name: str, reward: str) -> str:
    """Return `name` if it is a pool that can generate text, or a grader that is trained for `reward`. Raises
    BadInput."""
    pool = config.pools.get(name)
    if pool is not None and pool.role == "grader" and pool.finetune and pool.finetune.reward == reward:
        return name
    return writing_pool(config, key, name)


def pools_of(name: str, where: Path) -> str:
    """Return the run name for a job's pools on a shared cluster.

    Jobs of one kind that write to different outputs get different names. A resumed job finds the pools that an
    interrupted attempt left.
    """
    return f"{name}-{zlib.crc32(str(where.absolute()).encode()):08x}"


def with_pools(
    config: Config,
    names: Sequence[str],
    work: PoolWork[Result],
    *,
    run: str,
    progress: Callable[[str], None] = print,
    splits: Splits | None = None,
) -> Result:
    """Start the pools `names` of the configuration (each once), do the work, and stop the pools.

    Without `names`, only the work is done. `run` names their applications on the cluster (see `pools_of`). `splits` is
    the training data of pools with a `finetune` section that are not trained yet; without it, none of `names` may have
    one.

    Raises:
        BadInput: The model or template of a pool is not suitable.
        CapacityError: The pools need more than the machine has.
        ScorerUnavailable: A pool cannot start.
    """
    if not names:
        return signals.run(work({}))
    # Import Ray and the engines lazily: a command whose work is already done needs neither.
    from hamr.apps.scorer.prepare import prepare_scorers
    from hamr.apps.shared.pool_room import check_pool_room
    from hamr.cluster.model_folders import pool_model
    from hamr.cluster.session import ray_session
    from hamr.pools.client import PoolClient
    from hamr.pools.deployment import start_pools, stop_pools

    pools = {name: config.pools[name] for name in dict.fromkeys(names)}
    check_pool_room(config, pools, router=False)
    prepared = config.model_copy(update={"pools": with_starts(config, pools)})
    train, held_out = (splits.train, splits.validation) if splits else ((), ())
    scorers = prepare_scorers(prepared, train, held_out, progress)
    paths = {name: scorer.path for name, scorer in scorers.items() if name in pools}

    async def ask() -> Result:
        await start_pools(pools, paths, run=run, timeout_s=config.cluster.start_timeout_s, note=progress)
        clients = {name: PoolClient(name, pool, run) for name, pool in pools.items()}
        try:
            return await work({name: client.ask for name, client in clients.items()})
        finally:
            await asyncio.gather(*(client.close() for client in clients.values()))
            await stop_pools(run)

    with ray_session(config.cluster):
        models = {pool_model(name): path for name, path in paths.items()}
        check_pool_room(config, pools, router=False, models=models)
        return signals.run(ask())


def with_starts(config: Config, pools: Mapping[str, PoolConfig]) -> dict[str, PoolConfig]:
    """Return the pools and those that their training starts from."""
    starts = [pool.finetune.start_from for pool in pools.values() if pool.finetune and pool.finetune.start_from]
    return {**pools, **{name: config.pools[name] for name in starts}}
