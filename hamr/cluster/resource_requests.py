"""Resources that a run reserves on a cluster, derived from its configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from hamr.config.pools import PoolConfig, RouterConfig
from hamr.config.schema import Config, TrainerConfig
from hamr.config.section import FootprintConfig

OPENAI_POOL_CPUS = 0.1
"""CPUs of a replica of an `openai` pool, which only waits for the endpoint."""

Strategy = Literal["pack", "strict_pack", "spread"]
KEYS = {"CPU": "num_cpus", "GPU": "num_gpus"}


@dataclass(frozen=True, kw_only=True)
class ResourceRequest:
    """`count` actors of one kind, each with these logical resources on one node.

    `key` is the setting of the count, `section` the one of the resources. At most `per_node` of them are on one node.
    """

    key: str
    section: str
    count: int
    resources: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)
    strategy: Strategy = "spread"
    per_node: int | None = None
    parts: tuple[ResourceRequest, ...] = ()
    """Parts of one unit, if it consists of several actors."""

    @property
    def cpus(self) -> float:
        return self.resources.get("CPU", 0.0)

    @property
    def gpus(self) -> float:
        return self.resources.get("GPU", 0.0)

    def setting(self, resource: str) -> str:
        """Return the key that sets the amount of `resource` per actor."""
        return f"{self.section}.{KEYS.get(resource, f'custom_resources.{resource}')}"

    def each(self) -> str:
        """Resources of one unit as text, e.g. `4 CPU + 1 GPU`."""
        return " + ".join(f"{round(amount, 6):g} {name}" for name, amount in self.resources.items()) or "nothing"

    def bundles(self) -> list[dict[str, float]]:
        """Return the resources of every actor."""
        return [dict(d.resources) for d in self.parts or (self,) for _ in range(d.count)]


def demands(config: Config) -> list[ResourceRequest]:
    """Return the reservations of a run of `config`. An autoscaled pool counts with its minimum."""
    rollout = config.rollout
    wanted = [
        trainer_demand(config.trainer),
        ResourceRequest(
            key="rollout.workers",
            section="rollout.engine",
            count=rollout.workers,
            resources=amounts(rollout.engine),
            labels=rollout.engine.node_labels,
            strategy=rollout.placement,
        ),
        router_demand(config.router),
    ]
    return wanted + [pool_demand(name, pool) for name, pool in config.pools.items()]


def trainer_demand(trainer: TrainerConfig) -> ResourceRequest:
    """Return the reservation of the trainer group."""
    return ResourceRequest(
        key="trainer.ranks",
        section="trainer",
        count=trainer.ranks,
        resources=amounts(trainer),
        labels=trainer.node_labels,
        strategy=trainer.placement,
    )


def router_demand(router: RouterConfig) -> ResourceRequest:
    """Return the reservation of the router."""
    return ResourceRequest(key="router.num_cpus", section="router", count=1, resources={"CPU": router.num_cpus})


def learners(config: Config) -> list[ResourceRequest]:
    """Return the joint reservation of trainers and engines.

    Rank i and engine i are one unit if they share a GPU. All are on one node if weights pass through its memory.
    """
    trainer, rollout, *_ = demands(config)
    apart = [trainer, rollout]
    if config.rollout.colocated:
        apart = [
            replace(trainer, resources=_sum([(1, trainer), (1, rollout)]), labels={**rollout.labels, **trainer.labels})
        ]
    if config.rollout.transfer != "shared_memory":
        return apart
    one = ResourceRequest(
        key="rollout.transfer",
        section=" and ".join(d.section for d in apart),
        count=1,
        resources=_sum([(d.count, d) for d in apart]),
        labels={**rollout.labels, **trainer.labels},
        strategy="strict_pack",
        parts=tuple(apart),
    )
    return [one]


def _sum(parts: Iterable[tuple[int, ResourceRequest]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for count, demand in parts:
        for name, amount in demand.resources.items():
            total[name] = total.get(name, 0.0) + count * amount
    return total


def pool_demand(name: str, pool: PoolConfig) -> ResourceRequest:
    scale = pool.autoscaling
    key = "autoscaling.min_replicas" if scale and scale.min_replicas > pool.replicas else "replicas"
    return ResourceRequest(
        key=f"pools.{name}.{key}",
        section=f"pools.{name}.engine",
        count=pool.first_replicas,
        resources=replica_resources(pool),
        labels=pool.engine.node_labels,
        per_node=pool.max_replicas_per_node,
    )


def replica_resources(pool: PoolConfig) -> dict[str, float]:
    """Return the logical resources of one replica of `pool`, by Ray's names."""
    if pool.type == "openai":
        return {"CPU": OPENAI_POOL_CPUS, **pool.engine.custom_resources}
    return amounts(pool.engine)


def amounts(footprint: FootprintConfig) -> dict[str, float]:
    """Return resources by Ray's names, without zeros."""
    named = {"CPU": footprint.num_cpus, "GPU": footprint.num_gpus, **footprint.custom_resources}
    return {name: amount for name, amount in named.items() if amount}


def ray_options(resources: Mapping[str, float]) -> dict[str, object]:
    """Convert `resources` to the options of a Ray actor."""
    others = {name: amount for name, amount in resources.items() if name not in KEYS}
    known: dict[str, object] = {key: resources.get(name, 0.0) for name, key in KEYS.items()}
    return known | ({"resources": others} if others else {})
