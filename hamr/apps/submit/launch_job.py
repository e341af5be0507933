"""Job description for the files that start a cluster: number of nodes, name and command.

The requirements follow from the job's configuration (`hamr.cluster.resource_requests`), the size of a node from
`launch`. The whole resolved configuration is included as an experiment, so that the job runs exactly what was checked.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from hamr.cluster.placement import Node, plan
from hamr.cluster.resource_requests import demands
from hamr.config.custom import function_arguments
from hamr.config.load import dump_config
from hamr.config.schema import Config
from hamr.errors import CapacityError

EXPERIMENT = "launched"
CONFIG_FILE = f"conf/experiment/{EXPERIMENT}.yaml"
SPARE = 4


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Number of nodes besides the head: `least` for the job as it starts, `most` for every pool at its autoscaling
    maximum."""

    least: int
    most: int
    gpus: int


def nodes_for(configs: Sequence[Config]) -> Nodes:
    """Return the number of nodes that the largest of several jobs needs, which run one after the other."""
    each = [nodes(config) for config in configs]
    return Nodes(least=max(n.least for n in each), most=max(n.most for n in each), gpus=max(n.gpus for n in each))


def nodes(config: Config, given: GivenCommand | None = None) -> Nodes:
    """Return the number of nodes that the training run, or the `given` command, needs. An actor does not span nodes."""
    if given is not None:
        return given.nodes
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
    """Return the nodes that the job starts on, as described by `launch`."""
    wanted = nodes(config)
    return _alike(config, wanted.least, wanted.gpus)


def _alike(config: Config, count: int, gpus: int) -> list[Node]:
    room = {"CPU": float(config.launch.cpus_per_node)} | ({"GPU": float(gpus)} if gpus else {})
    return [Node(name=f"node {i + 1}", resources=room) for i in range(count)]


def _holding(config: Config, gpus: int) -> int:
    """Return the smallest number of nodes on which everything can be placed.

    Where a few more nodes than the sum requires do not suffice, return the sum: labels or resources prevent the
    placement then, and the plan reports them.
    """
    bounded = [math.ceil(d.count / d.per_node) for d in demands(config) if d.per_node]
    fewest = max([count_nodes(config), *bounded])
    for count in range(fewest, fewest + SPARE):
        if not any(row.missing for row in plan(config, _alike(config, count, gpus))):
            return count
    return fewest


def count_nodes(config: Config) -> int:
    """Return the number of nodes by first fit, most GPUs first, then most CPUs."""
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
    """Return `launch.name`, or the experiment's name, in a form that Kubernetes and Slurm accept.

    Lower-case letters, digits and dashes, at most 40 characters.
    """
    name = re.sub(r"[^a-z0-9]+", "-", (config.launch.name or config.experiment.name).lower()).strip("-")
    return f"hamr-{name[:40].strip('-') or 'run'}"


def experiment_file(config: Config, run_dir: str) -> str:
    """Return the whole configuration as a choice of `experiment`. On the cluster, Ray is joined and not started."""
    cluster = config.cluster.model_copy(update={"address": "auto", "type": "local"})
    experiment = config.experiment.model_copy(update={"run_dir": config.experiment.run_dir or run_dir})
    there = config.model_copy(update={"cluster": cluster, "experiment": experiment})
    return f"# @package _global_\n# The resolved configuration; written by hamr.\n{dump_config(there)}"


@dataclass(frozen=True, kw_only=True)
class GivenCommand:
    """A command other than the training run of a configuration. `resolved`: it runs with the resolved configuration."""

    words: tuple[str, ...]
    nodes: Nodes
    resolved: bool = False


def command(
    config: Config, folder: str, resume: str | None = None, *, program: str = "hamr", given: GivenCommand | None = None
) -> str:
    """Return the shell command of the job; `folder` is a shell word.

    Groups whose keys are names are removed first, because the file is complete. A run to `resume` has its configuration
    in its folder, except the paths of its functions.
    """
    configured = f"--config-dir {folder} experiment={EXPERIMENT} pools=null"
    if given is not None:
        return f"{program} {shlex.join(given.words)}" + (f" {configured}" if given.resolved else "")
    if resume is not None:
        return f"{program} train {shlex.join([f'resume={resume}', *function_arguments(config.functions)])}"
    return f"{program} train {configured}"
