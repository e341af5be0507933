"""The nodes of a Ray cluster as `hamr.actors.placement` sees them, and places reserved on them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hamr.actors.demands import Demand, learners
from hamr.actors.placement import Node
from hamr.config.schema import Config
from hamr.errors import CapacityError


@dataclass(frozen=True, kw_only=True)
class Place:
    """A Ray placement group; whoever it was given to has its bundles from `first` on."""

    group: Any
    first: int = 0


def cluster_nodes() -> list[Node]:
    """The live nodes and what is free on each now. Nodes with the same address (several on one machine) are told
    apart by the start of their id."""
    import ray
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    alive = [node for node in ray.nodes() if node["Alive"]]
    addresses = [node["NodeManagerAddress"] for node in alive]
    found = []
    for node in alive:
        address, identity = node["NodeManagerAddress"], node["NodeID"]
        name = address if addresses.count(address) == 1 else f"{address}#{identity[:6]}"
        found.append(Node(name=name, resources=free.get(identity, node["Resources"]), labels=node.get("Labels") or {}))
    return sorted(found, key=lambda node: node.name)


async def reserve_learners(config: Config, timeout_s: float) -> tuple[Place | None, Place | None]:
    """Places for the trainers and for the rollout workers, before anything else takes the room.

    Raises CapacityError when the cluster has not placed them within `timeout_s`; nothing stays reserved then.
    """
    wanted = learners(config)
    if any(not bundle for demand in wanted for bundle in demand.bundles()):
        return None, None  # Ray reserves nothing for an actor that takes nothing
    places: list[Place] = []
    try:
        for demand in wanted:
            places.append(await _reserve(demand, timeout_s))
    except BaseException:
        for place in places:
            release(place)
        raise
    if len(places) == 2:
        return places[0], places[1]
    [shared] = places
    return shared, Place(group=shared.group, first=0 if config.rollout.colocated else config.trainer.ranks)


async def _reserve(demand: Demand, timeout_s: float) -> Place:
    """One bundle for each actor of `demand`."""
    from ray.util.placement_group import placement_group

    bundles = demand.bundles()
    labels = [dict(demand.labels) for _ in bundles] if demand.labels else None
    place = Place(group=placement_group(bundles, strategy=demand.strategy.upper(), bundle_label_selector=labels))
    try:
        await asyncio.wait_for(_ready(place.group), timeout_s)
    except BaseException as e:
        release(place)
        if not isinstance(e, TimeoutError):
            raise
        remedy = f"no place for {len(bundles)} actors that take {demand.each()} ({demand.strategy}) within "
        remedy += f"{timeout_s:g} s; give the cluster room, or raise cluster.start_timeout_s"
        raise CapacityError(demand.key, demand.count, remedy) from None
    return place


async def _ready(group: Any) -> None:
    await group.ready()


def release(place: Place | None) -> None:
    """Gives a reserved place back; a second time does nothing."""
    import ray
    from ray.util.placement_group import remove_placement_group

    if place is not None and ray.is_initialized():
        remove_placement_group(place.group)


def at(place: Place | None, unit: int, labels: Mapping[str, str]) -> dict[str, Any]:
    """Actor options that put unit `unit` into its bundle. Without a place, the labels choose the node."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    if place is None:
        return {"label_selector": dict(labels)} if labels else {}
    strategy = PlacementGroupSchedulingStrategy(place.group, placement_group_bundle_index=place.first + unit)
    return {"scheduling_strategy": strategy}
