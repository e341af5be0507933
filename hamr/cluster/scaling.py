"""Resizing the pools of a run: what may be asked for, and whether there is room."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hamr.cluster.placement import Node, place
from hamr.cluster.resource_requests import pool_demand
from hamr.config.overrides import nearest_first
from hamr.config.pools import PoolConfig
from hamr.config.schema import RewardsConfig
from hamr.errors import BadInput, CapacityError


def with_replicas(
    pools: Mapping[str, PoolConfig], wanted: Mapping[str, int], rewards: RewardsConfig
) -> dict[str, PoolConfig]:
    """The sections of the pools that `wanted` names, with as many replicas.

    A fixed pool gets the number. An autoscaled one gets it as its least, within the bounds of `pools`: load may still
    add more. Raises BadInput for an unknown pool, for none at all, and for what lies beyond the bounds.
    """
    changed = {}
    for name, count in wanted.items():
        if name not in pools:
            near = nearest_first(name, list(pools))
            raise BadInput(f"scale {name}", count, f"no such pool; there are (nearest first): {', '.join(near)}")
        pool = pools[name]
        if count < 1:
            users = [key.partition(".")[0] for key, asked in rewards.asked.items() if asked == name]
            why = (
                f"the run needs it: {', '.join(f'rewards.{u}' for u in users)} would have nobody to ask"
                if users
                else ("a pool keeps one replica; leave one that no reward asks out of the next run's configuration")
            )
            raise BadInput(f"scale {name}", count, f"{why}; ask for 1 or more")
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
    """Refuse replicas that no node has room for. `running`: replicas of each pool now, of which an autoscaled one may
    have more than its least. Raises CapacityError with the number that there is room for."""
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
                f"the cluster has room for {most}: a replica takes {demand.each()} on one node; ask for {most}, add "
                "nodes, or shrink another pool first",
            )
