"""Named pools for the length of one piece of work: what jobs need that ask models without a training run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from hamr.config.pools import PoolConfig
from hamr.config.schema import Config
from hamr.errors import BadInput
from hamr.protocols import Ask
from hamr.types import Answer, Question

Result = TypeVar("Result")
Work = Callable[[Mapping[str, Ask]], Awaitable[Result]]
"""What is to be done with the pools, by name."""


def writing_pool(config: Config, key: str, name: str) -> str:
    """`name`, if it is a pool that can write; `key` is the option that named it. Raises BadInput."""
    if name not in config.pools:
        raise BadInput(key, name, f"no such pool; there are: {', '.join(sorted(config.pools))}")
    if config.pools[name].role == "reranker":
        raise BadInput(key, name, "is a reranker and cannot write; name a pool with role judge or grader")
    if config.pools[name].finetune:
        raise BadInput(key, name, "is fine-tuned to give verdicts and cannot write; name an untrained pool")
    return name


def with_pools(
    config: Config, names: Sequence[str], work: Work[Result], *, run: str, progress: Callable[[str], None] = print
) -> Result:
    """Starts the pools `names` of the configuration (each once), does the work, and takes them down again.

    `run` names their applications on the cluster. Raises BadInput for a pool whose model or template will not do,
    ScorerUnavailable when a pool cannot start.
    """
    # Ray and the engines load only here: a command whose work is done already needs neither.
    from hamr.actors.pools import PoolClient, start_pools, stop_pools
    from hamr.actors.session import ray_session
    from hamr.jobs.scorer import prepare_scorers

    pools = {name: config.pools[name] for name in dict.fromkeys(names)}
    scorers = prepare_scorers(config.model_copy(update={"pools": pools}), (), (), progress)
    paths = {name: scorer.path for name, scorer in scorers.items()}

    async def ask() -> Result:
        await start_pools(pools, paths, run=run, timeout_s=config.cluster.start_timeout_s)
        clients = {name: PoolClient(name, pool, run) for name, pool in pools.items()}
        try:
            return await work({name: bounded(client.ask, capacity(pools[name])) for name, client in clients.items()})
        finally:
            await asyncio.gather(*(client.close() for client in clients.values()))
            await stop_pools(run)

    with ray_session(config.cluster):
        return asyncio.run(ask())


def capacity(pool: PoolConfig) -> int:
    """Questions that a pool works on at a time. More at once would wait in line while their deadline runs."""
    replicas = pool.most_replicas
    return replicas * pool.max_ongoing_requests * pool.batch_size


def bounded(ask: Ask, most: int) -> Ask:
    """`ask` with at most so many questions under way."""
    free = asyncio.Semaphore(most)

    async def ask_in_turn(question: Question) -> Answer:
        async with free:
            return await ask(question)

    return ask_in_turn
