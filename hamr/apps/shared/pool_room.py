"""Capacity check for pools that are used without a training run, before any of them starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from hamr.cluster.model_folders import check_models
from hamr.cluster.nodes import cluster_nodes
from hamr.cluster.placement import Node, check_demands, place
from hamr.cluster.resource_requests import pool_demand, router_demand
from hamr.cluster.session import local_cpus
from hamr.config.pools import PoolConfig
from hamr.config.schema import Config, RolloutConfig
from hamr.pools.scorer_openai import OpenAIScorer
from hamr.rollout.vllm_settings import check_engine_extra, check_sampling_extra


def check_pool_room(
    config: Config, names: Iterable[str], *, router: bool, models: Mapping[str, Path] | None = None
) -> None:
    """Check that the pools `names` (and the router, if one is started) fit.

    Checks against the total resources of the nodes of the Ray that runs in this process, because resources in use may
    be about to be released. Before Ray runs, checks against the local node. A remote cluster must be joined first, and
    an elastic cluster is never full.

    Raises:
        BadInput: A local pool's endpoint is not allowed, or its key is not set.
        CapacityError: The pools do not fit; names the key, its value and what would fit.
        BadInput: A node that the pools would run on lacks one of `models` (folders by setting).
    """
    import ray

    names = tuple(names)
    check_extras({name: config.pools[name] for name in names})
    wanted = [pool_demand(name, config.pools[name]) for name in names]
    if router:
        wanted.append(router_demand(config.router))
    if ray.is_initialized():
        nodes = cluster_nodes(free_only=False)
        if not config.cluster.elastic:
            check_demands(wanted, nodes)
        check_models(place(wanted, nodes), models or {})
    elif config.cluster.address is None:
        check_endpoints(config, names)
        if not config.cluster.elastic:
            check_demands(wanted, [local_node(config)])


def check_extras(pools: Mapping[str, PoolConfig], rollout: RolloutConfig | None = None) -> None:
    """Check the arguments and parameters that are passed through to vLLM. Raises BadInput."""
    for name, pool in pools.items():
        if pool.type == "vllm":
            check_engine_extra(f"pools.{name}.engine.extra", pool.engine.extra)
            check_sampling_extra(f"pools.{name}.sampling_extra", pool.sampling_extra, own=("top_k",))
    if rollout is not None:
        check_engine_extra("rollout.engine.extra", rollout.engine.extra)
        check_sampling_extra("rollout.sampling_extra", rollout.sampling_extra)


def check_endpoints(config: Config, names: Iterable[str]) -> None:
    """Check the addresses and keys of endpoints before a local Ray starts. Raises BadInput.

    A name is not resolved, and pools on a cluster are checked there: its nodes have their own allow-list and keys.
    """
    for name in names:
        if config.pools[name].type == "openai":
            OpenAIScorer.check_config(name, config.pools[name])


def local_node(config: Config) -> Node:
    """Return this machine as the node of a local Ray. Its GPUs are counted without importing torch."""
    gpus = float(len(list(Path("/dev").glob("nvidia[0-9]*"))))
    return Node(name="this machine", resources={"CPU": local_cpus(config.cluster), "GPU": gpus})
