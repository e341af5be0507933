"""What every file that starts a cluster has to say about its job: how many nodes, which name, which command.

What the cluster must hold follows from the job's configuration (`hamr.cluster.resource_requests`), what a node has
from `launch`. The whole resolved configuration is included as an experiment of its own, so that the job that runs there
is the one that was checked here.
"""

from __future__ import annotations

import importlib.metadata
import math
import re
import shlex
from dataclasses import dataclass

from hamr.cluster.placement import Node, plan
from hamr.cluster.resource_requests import demands
from hamr.config.load import dump_config
from hamr.config.schema import Config
from hamr.errors import CapacityError

RAY_FLOOR = "2.52.0"
EXPERIMENT = "launched"
CONFIG_FILE = f"conf/experiment/{EXPERIMENT}.yaml"
SPARE = 4


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Nodes beside the head: `least` hold the job as it starts, `most` hold every pool at its autoscaling maximum."""

    least: int
    most: int
    gpus: int


def nodes(config: Config) -> Nodes:
    """Nodes that hold all that the job wants: actors do not stretch over nodes."""
    largest = {
        name: pool.model_copy(update={"autoscaling": None, "replicas": pool.most_replicas})
        for name, pool in config.pools.items()
    }
    grown = config.model_copy(update={"pools": largest})
    wants_gpus = any(d.gpus for d in demands(config))
    gpus = config.launch.gpus_per_node if wants_gpus else 0
    least, most = _holding(config, gpus), count_nodes(grown)
    return Nodes(least=least, most=max(least, most), gpus=gpus)


def nodes_to_be(config: Config) -> list[Node]:
    """The nodes that the job starts on, as far as `launch` describes them."""
    wanted = nodes(config)
    return _alike(config, wanted.least, wanted.gpus)


def _alike(config: Config, count: int, gpus: int) -> list[Node]:
    room = {"CPU": float(config.launch.cpus_per_node)} | ({"GPU": float(gpus)} if gpus else {})
    return [Node(name=f"node {i + 1}", resources=room) for i in range(count)]


def _holding(config: Config, gpus: int) -> int:
    """The fewest nodes on which everything finds a place. Where not even a few more than the sums ask for would do,
    the sums: what is in the way then are labels or resources, and who looks at the plan is told."""
    bounded = [math.ceil(d.count / d.per_node) for d in demands(config) if d.per_node]
    fewest = max([count_nodes(config), *bounded])
    for count in range(fewest, fewest + SPARE):
        if not any(row.missing for row in plan(config, _alike(config, count, gpus))):
            return count
    return fewest


def count_nodes(config: Config) -> int:
    """First fit, most GPUs first, then most CPUs."""
    launch = config.launch
    free: list[list[float]] = []
    actors = [(d.gpus, d.cpus, d.key, d.count) for d in demands(config) for _ in range(d.count)]
    for gpus, cpus, key, count in sorted(actors, reverse=True):
        if gpus > launch.gpus_per_node or cpus > launch.cpus_per_node:
            raise CapacityError(
                key,
                count,
                f"one needs {gpus:g} GPUs and {cpus:g} CPUs, and a node has {launch.gpus_per_node} and "
                f"{launch.cpus_per_node}; lower what it asks for, or raise launch.gpus_per_node, .cpus_per_node",
            )
        for node in free:
            if node[0] + 1e-9 >= gpus and node[1] + 1e-9 >= cpus:
                break
        else:
            node = [float(launch.gpus_per_node), float(launch.cpus_per_node)]
            free.append(node)
        node[0] -= gpus
        node[1] -= cpus
    return max(1, len(free))


def name_of(config: Config) -> str:
    """`launch.name`, or the experiment's, as Kubernetes and Slurm take names: small letters, digits and dashes, 40 at
    most."""
    name = re.sub(r"[^a-z0-9]+", "-", (config.launch.name or config.experiment.name).lower()).strip("-")
    return f"hamr-{name[:40].strip('-') or 'run'}"


def experiment_file(config: Config, run_dir: str) -> str:
    """The whole configuration as a choice of `experiment`. On the cluster Ray is joined, not started."""
    cluster = config.cluster.model_copy(update={"address": "auto", "type": "local"})
    experiment = config.experiment.model_copy(update={"run_dir": config.experiment.run_dir or run_dir})
    there = config.model_copy(update={"cluster": cluster, "experiment": experiment})
    return f"# @package _global_\n# The resolved configuration; written by hamr.\n{dump_config(there)}"


def command(folder: str, resume: str | None = None, *, program: str = "hamr") -> str:
    """What runs the job; `folder` is a word of a shell script. Groups whose keys are names are taken out first: the
    file has all that is wanted of them. A run to `resume` has its configuration in its folder."""
    if resume is not None:
        return f"{program} train {shlex.quote(f'resume={resume}')}"
    return f"{program} train --config-dir {folder} experiment={EXPERIMENT} pools=null"


def ray_version() -> str:
    """The installed one, which the nodes must have, too."""
    try:
        return importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        return RAY_FLOOR
