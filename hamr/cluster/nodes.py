"""Nodes of a Ray cluster as input of `hamr.cluster.placement`, and reservations on them."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from hamr import __version__
from hamr.cluster.placement import Node
from hamr.cluster.resource_requests import ResourceRequest, learners
from hamr.config.schema import Config
from hamr.errors import BadInput, CapacityError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A Ray placement group. Its owner uses the bundles from `first` on."""

    group: Any
    first: int = 0


def cluster_nodes(*, free_only: bool = True) -> list[Node]:
    """Return the live nodes with their free or total resources.

    Nodes with the same address (several on one machine) are distinguished by the start of their id.
    """
    import ray
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node() if free_only else {}
    alive = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
    names = node_names({i: node["NodeManagerAddress"] for i, node in alive.items()})
    found = [
        Node(name=names[i], resources=free.get(i, node["Resources"]), labels=node.get("Labels") or {})
        for i, node in alive.items()
    ]
    return sorted(found, key=lambda node: node.name)


def node_ids() -> dict[str, str]:
    """Return the id of every live node, by its name."""
    import ray

    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    return {name: node for node, name in node_names(addresses).items()}


def node_names(addresses: Mapping[str, str]) -> dict[str, str]:
    """Return a readable name for each node's id: its address, with the start of the id where several have it."""
    count = Counter(addresses.values())
    return {node: f"{address}#{node[:6]}" if count[address] > 1 else address for node, address in addresses.items()}


async def reserve_learners(config: Config, timeout_s: float) -> tuple[Reservation | None, Reservation | None]:
    """Reserve resources for the trainers and the rollout workers, before anything else uses them.

    Raises CapacityError if the cluster does not place them within `timeout_s`; then nothing stays reserved.
    """
    wanted = learners(config)
    if any(not bundle for demand in wanted for bundle in demand.bundles()):
        return None, None  # Ray reserves nothing for an actor without resources
    places: list[Reservation] = []
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
    return shared, Reservation(group=shared.group, first=0 if config.rollout.colocated else config.trainer.ranks)


async def _reserve(demand: ResourceRequest, timeout_s: float) -> Reservation:
    """Reserve one bundle for each actor of `demand`."""
    from ray.util.placement_group import placement_group

    bundles = demand.bundles()
    labels = [dict(demand.labels) for _ in bundles] if demand.labels else None
    place = Reservation(group=placement_group(bundles, strategy=demand.strategy.upper(), bundle_label_selector=labels))
    try:
        await asyncio.wait_for(_ready(place.group), timeout_s)
    except BaseException as e:
        release(place)
        if not isinstance(e, TimeoutError):
            raise
        remedy = f"cannot place {len(bundles)} actors that need {demand.each()} ({demand.strategy}) within "
        remedy += f"{timeout_s:g} s; add resources to the cluster, or raise cluster.start_timeout_s"
        raise CapacityError(demand.key, "shared_memory" if demand.parts else demand.count, remedy) from None
    return place


async def _ready(group: Any) -> None:
    await group.ready()


def release(place: Reservation | None) -> None:
    """Release a reservation. Later calls do nothing."""
    import ray
    from ray.util.placement_group import remove_placement_group

    if place is not None and ray.is_initialized():
        remove_placement_group(place.group)


def at(place: Reservation | None, unit: int, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return actor options that put unit `unit` into its bundle. Without a reservation, the labels select the node."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    if place is None:
        return {"label_selector": dict(labels)} if labels else {}
    strategy = PlacementGroupSchedulingStrategy(place.group, placement_group_bundle_index=place.first + unit)
    return {"scheduling_strategy": strategy}


def check_alike(timeout_s: float) -> None:
    """Check that every node has the same versions as this process. Raises BadInput if not.

    A node that does not answer within `timeout_s` is reported too, because its Python may be unable to read the
    request.
    """
    nodes = node_ids()
    found = ask_nodes(list(nodes.values()), timeout_s, _versions)
    refuse_unlike(_versions(), {name: found[node] for name, node in nodes.items()})


def ask_nodes(nodes: Sequence[str], timeout_s: float, question: Callable[..., T], *args: Any) -> dict[str, T | str]:
    """Run `question(*args)` on each node. Return by node id its result, or the reason for a missing answer."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(num_cpus=0, max_retries=0)(question)
    refs = {
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(*args): node
        for node in nodes
    }
    answered, silent = ray.wait(list(refs), num_returns=len(refs), timeout=timeout_s)
    found: dict[str, T | str] = {refs[ref]: f"no answer in {timeout_s:g} s" for ref in silent}
    for ref in answered:
        try:
            found[refs[ref]] = ray.get(ref)
        except ray.exceptions.RayError as e:
            found[refs[ref]] = str(e).strip().splitlines()[-1]
    return found


def _versions() -> dict[str, str]:
    """Return the versions that must be the same in all processes of a run."""
    import ray

    return {"python": ".".join(map(str, sys.version_info[:2])), "ray": ray.__version__, "hamr": __version__}


def refuse_unlike(here: Mapping[str, str], found: Mapping[str, Mapping[str, str] | str]) -> None:
    """Raise BadInput for the first node with other versions. `found` has per node its versions or an error."""
    for node, versions in sorted(found.items()):
        if isinstance(versions, str):
            remedy = "cannot report its versions; install the same as on the others, or free memory on it"
            raise BadInput(f"node {node}", versions, remedy)
        for name, ours in here.items():
            if versions[name] != ours:
                remedy = f"the run itself has {ours}; install the same on every node"
                raise BadInput(f"node {node}", f"{name} {versions[name]}", remedy)
