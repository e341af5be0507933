"""Resizing of a run's pools: validation and capacity check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hamr.cluster.placement import Node, place
from hamr.cluster.resource_requests import pool_demand
from hamr.config.overrides import nearest_first
from hamr.config.pools import PoolConfig
from hamr.config.rewards import RewardsConfig
from hamr.errors import BadInput, CapacityError


def with_replicas(
    pools: Mapping[str, PoolConfig], wanted: Mapping[str, int], rewards: RewardsConfig
) -> dict[str, PoolConfig]:
    """Return the sections of the pools in `wanted` with the new numbers of replicas.

    A fixed pool gets the number. An autoscaled pool gets it as its minimum, within the bounds of `pools`; autoscaling
    may still add more. Raises BadInput for an unknown pool and for a number beyond the bounds.
    """
    changed = {}
    for name, count in wanted.items():
        if name not in pools:
            near = nearest_first(name, list(pools))
            raise BadInput(f"scale {name}", count, f"no such pool; available (nearest first): {', '.join(near)}")
        pool = pools[name]
        if count < 1:
            users = [key.partition(".")[0] for key, asked in rewards.used_pools.items() if asked == name]
            why = (
                f"the run needs it: {', '.join(f'rewards.{u}' for u in users)} would have no scorer"
                if users
                else ("a pool keeps one replica; remove a pool that no reward uses from the next run's configuration")
            )
            raise BadInput(f"scale {name}", count, f"{why}; request 1 or more")
        bounds = pool.autoscaling
        if bounds is None:
            changed[name] = pool.model_copy(update={"replicas": count})
            continue
        if not bounds.min_replicas <= count <= bounds.max_replicas:
            raise BadInput(
                f"scale {name}",
                count,
                f"beyond the bounds of pools.{name}.autoscaling, {bounds.min_replicas} to {bounds.max_replicas}; ask "
                "for a number within them",
            )
        least = bounds.model_copy(update={"min_replicas": count})
        changed[name] = pool.model_copy(update={"replicas": count, "autoscaling": least})
    return changed


def check_growth(
    now: Mapping[str, PoolConfig], changed: Mapping[str, PoolConfig], nodes: Sequence[Node], running: Mapping[str, int]
) -> None:
    """Raise CapacityError, with the possible number, if no node has room for the new replicas.

    Args:
        running: Current replicas of each pool; an autoscaled pool may have more than its minimum.
    """
    grown = []
    for name, pool in changed.items():
        have = max(now[name].first_replicas, running.get(name, 0))
        more = pool.first_replicas - have
        if more > 0:
            grown.append((name, have, replace(pool_demand(name, pool), count=more)))
    rows = place([demand for _, _, demand in grown], nodes)
    for (name, have, demand), row in zip(grown, rows, strict=True):
        if row.missing:
            most = have + demand.count - row.missing
            raise CapacityError(
                f"scale {name}",
                have + demand.count,
                f"the cluster has room for {most}: a replica needs {demand.each()} on one node; request {most}, add "
                "nodes, or shrink another pool first",
            )
