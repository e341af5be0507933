"""Status and resizing of the pools of a running job."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hamr.cluster.nodes import cluster_nodes
from hamr.cluster.scaling import check_growth, with_replicas
from hamr.config.pools import PoolConfig
from hamr.config.schema import Config
from hamr.errors import HamrError
from hamr.pools.deployment import ScorerFactory, pool_status, resize_pools
from hamr.pools.router_actor import RouterClient
from hamr.pools.scorers import build_scorer

DESCRIBE_S = 5.0
"""Longest wait for a busy router, in seconds; after that the status omits the client metrics."""

BACK_S = 60.0
"""Extra time in seconds to roll back a failed resize. No replica starts, but Serve needs time to apply it."""


class LivePoolScaler:
    """`hamr.apps.shared.live_control.PoolScaler` for Serve pools. `pools` are the current sections; their counts
    change."""

    def __init__(
        self,
        config: Config,
        model_paths: Mapping[str, Path],
        run: str,
        router: RouterClient,
        *,
        scorer_factory: ScorerFactory = build_scorer,
    ) -> None:
        self.config, self.run, self.router = config, run, router
        self.pools: dict[str, PoolConfig] = dict(config.pools)
        self._paths, self._factory = model_paths, scorer_factory
        self._one_at_a_time = asyncio.Lock()
        """A deployment sets both the replicas and the model's folder, so two at a time would revert each other."""

    async def status(self) -> dict[str, dict[str, Any]]:
        found, described = await asyncio.gather(asyncio.to_thread(pool_status, self.run), self._describe())
        return {name: {**status, **described.get(name, {})} for name, status in found.items()}

    async def _describe(self) -> dict[str, dict[str, Any]]:
        try:
            return await asyncio.wait_for(self.router.describe(), DESCRIBE_S)
        except TimeoutError:
            return {}

    async def resize(self, wanted: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Resize all pools in `wanted` or none: pools that could not grow are rolled back."""
        changed = with_replicas(self.config.pools, wanted, self.config.rewards)
        async with self._one_at_a_time:
            before = {name: self.pools[name] for name in changed}
            if not self.config.cluster.elastic:
                running = {name: s["running"] for name, s in (await asyncio.to_thread(pool_status, self.run)).items()}
                check_growth(before, changed, await asyncio.to_thread(cluster_nodes), running)
            try:
                await self._deploy(changed)
            except HamrError as e:
                try:
                    await self._deploy(before, BACK_S)
                except HamrError as again:
                    raise HamrError(f"{e}; the rollback failed too: {again}") from e
                raise HamrError(f"{e}; the pools are unchanged") from e
            self.pools.update(changed)
            await self.router.resize({name: pool.most_replicas for name, pool in changed.items()})
        return {name: (before[name].first_replicas, pool.first_replicas) for name, pool in changed.items()}

    async def reload(self, paths: Mapping[str, Path]) -> None:
        """Let the replicas of running pools load other model folders, and drop cached answers.

        Raises HamrError if a replica cannot load it.
        """
        async with self._one_at_a_time:
            self._paths = {**self._paths, **paths}
            await self._deploy({name: self.pools[name] for name in paths})
            await self.router.forget()

    async def _deploy(self, pools: Mapping[str, PoolConfig], more_s: float = 0.0) -> None:
        limit = self.config.cluster.start_timeout_s + max(pool.deadline_s for pool in pools.values()) + more_s
        await resize_pools(pools, self._paths, run=self.run, timeout_s=limit, scorer_factory=self._factory)
