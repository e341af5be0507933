"""Files that start a Ray cluster for one job: KubeRay manifests, a Slurm script, plain `ray start` scripts.

What the cluster must hold follows from the job's configuration (`hamr.actors.session.demands`), what a node has from
`launch`. The whole resolved configuration goes along as an experiment of its own, so that the job that runs there is
the one that was looked at here. No file holds a secret: the cluster's token is made where the cluster starts, other
keys come from a Kubernetes Secret or from the environment.
"""

from __future__ import annotations

import importlib.metadata
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from hamr.actors.demands import demands
from hamr.config.launch import LaunchConfig, LaunchKind
from hamr.config.load import dump_config
from hamr.config.schema import Config
from hamr.errors import CapacityError

RAY_FLOOR = "2.52.0"
EXPERIMENT = "launched"
CONFIG_FILE = f"conf/experiment/{EXPERIMENT}.yaml"
MOUNT = "/etc/hamr"
"""Where pods find the configuration."""


def render(config: Config, kind: LaunchKind) -> dict[str, str]:
    """The files by name (a path relative to their folder). Raises CapacityError where an actor fits no node."""
    return KINDS[kind](config)


# --- nodes -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """Nodes beside the head: `least` hold the job as it starts, `most` hold every pool at its autoscaling maximum."""

    least: int
    most: int
    gpus: int


def nodes(config: Config) -> Nodes:
    """Nodes that hold all that the job wants, packed largest first: actors do not stretch over nodes."""
    largest = {
        name: pool.model_copy(update={"autoscaling": None, "replicas": pool.most_replicas})
        for name, pool in config.pools.items()
    }
    grown = config.model_copy(update={"pools": largest})
    least, most = packed(config), packed(grown)
    wants_gpus = any(d.gpus for d in demands(config))
    return Nodes(least=least, most=max(least, most), gpus=config.launch.gpus_per_node if wants_gpus else 0)


def packed(config: Config) -> int:
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


# --- what all of them carry ------------------------------------------------------------------------


def name_of(config: Config) -> str:
    """The experiment's name as Kubernetes and Slurm take names: small letters, digits and dashes, 40 at most."""
    name = re.sub(r"[^a-z0-9]+", "-", config.experiment.name.lower()).strip("-")[:40].strip("-")
    return f"hamr-{name or 'run'}"


def experiment_file(config: Config, run_dir: str) -> str:
    """The whole configuration as a choice of `experiment`. On the cluster Ray is joined, not started."""
    cluster = config.cluster.model_copy(update={"address": "auto"})
    experiment = config.experiment.model_copy(update={"run_dir": config.experiment.run_dir or run_dir})
    there = config.model_copy(update={"cluster": cluster, "experiment": experiment})
    return f"# @package _global_\n# The resolved configuration; written by hamr plan.\n{dump_config(there)}"


def command(folder: str) -> str:
    """What runs the job. Groups whose keys are names are taken out first: the file has all that is wanted of them."""
    return f"hamr train --config-dir {folder} experiment={EXPERIMENT} pools=null"


def ray_version() -> str:
    """The installed one, which the nodes must have, too."""
    try:
        return importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        return RAY_FLOOR


# --- KubeRay ---------------------------------------------------------------------------------------


def kuberay(config: Config) -> dict[str, str]:
    """`configmap.yaml`, `rayjob.yaml` (its own cluster, taken down at the end), `raycluster.yaml` (one to keep)."""
    name, launch = name_of(config), config.launch
    folder = f"/mnt/hamr/runs/{name}"
    spec = cluster_spec(config)
    job = {
        "entrypoint": command(MOUNT),
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": launch.keep_finished_s,
        "activeDeadlineSeconds": math.ceil(launch.time_limit_h * 3600),
        # A second cluster would find the run folder in use; going on is `resume=`.
        "backoffLimit": 0,
        "rayClusterSpec": spec,
    }
    text = experiment_file(config, folder)
    return {
        "configmap.yaml": _yaml(_object(config, "v1", "ConfigMap", data={f"{EXPERIMENT}.yaml": text})),
        "rayjob.yaml": _yaml(_object(config, "ray.io/v1", "RayJob", spec=job)),
        "raycluster.yaml": _yaml(_object(config, "ray.io/v1", "RayCluster", spec=spec)),
    }


def cluster_spec(config: Config) -> dict[str, Any]:
    """The operator makes the token's Secret and puts it into every pod (KubeRay 1.5.1 or newer)."""
    wanted, launch = nodes(config), config.launch
    scales = wanted.most > wanted.least
    head = {"cpu": str(launch.head_cpus), "memory": f"{launch.head_memory_gib}Gi"}
    worker = {"cpu": str(launch.cpus_per_node), "memory": f"{launch.memory_gib_per_node}Gi"}
    if wanted.gpus:
        worker["nvidia.com/gpu"] = str(wanted.gpus)
    group = {
        "groupName": "nodes",
        "replicas": wanted.least,
        "minReplicas": wanted.least,
        "maxReplicas": wanted.most,
        "rayStartParams": {},
        "template": _pod(launch, name_of(config), "ray-worker", worker),
    }
    return {
        "rayVersion": ray_version(),
        "authOptions": {"mode": "token"},
        **({"enableInTreeAutoscaling": True} if scales else {}),
        "headGroupSpec": {
            # No actor of the run on the head: losing one of those must not lose the cluster.
            "rayStartParams": {"num-cpus": "0"},
            "template": _pod(launch, name_of(config), "ray-head", head),
        },
        "workerGroupSpecs": [group],
    }


def _pod(launch: LaunchConfig, name: str, container: str, resources: Mapping[str, str]) -> dict[str, Any]:
    shared = {"medium": "Memory", "sizeLimit": f"{launch.shared_memory_gib}Gi"}
    work: dict[str, Any] = {"persistentVolumeClaim": {"claimName": launch.claim}} if launch.claim else {"emptyDir": {}}
    items = [{"key": f"{EXPERIMENT}.yaml", "path": f"experiment/{EXPERIMENT}.yaml"}]
    one: dict[str, Any] = {
        "name": container,
        "image": launch.image,
        "resources": {"requests": dict(resources), "limits": dict(resources)},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "config", "mountPath": MOUNT, "readOnly": True},
            {"name": "work", "mountPath": "/mnt/hamr"},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }
    if launch.secret:
        one["envFrom"] = [{"secretRef": {"name": launch.secret}}]
    return {
        "spec": {
            "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "fsGroup": 1000},
            "containers": [one],
            "volumes": [
                {"name": "config", "configMap": {"name": name, "items": items}},
                {"name": "work", **work},
                {"name": "shared-memory", "emptyDir": shared},
            ],
        }
    }


def _object(config: Config, version: str, kind: str, **rest: Any) -> dict[str, Any]:
    metadata = {"name": name_of(config), "namespace": config.launch.namespace}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}


def _yaml(value: Mapping[str, Any]) -> str:
    # Without aliases, which no manifest that people read should have.
    dumper = type("_Plain", (yaml.SafeDumper,), {"ignore_aliases": lambda self, data: True})
    return yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)


# --- Slurm and plain machines ----------------------------------------------------------------------


def slurm(config: Config) -> dict[str, str]:
    """`job.sbatch`: Ray on every node of the allocation behind a token of the job's own, then the run on the first."""
    launch, wanted = config.launch, nodes(config)
    options = {
        "job-name": name_of(config),
        "nodes": wanted.least,
        "ntasks-per-node": 1,
        "cpus-per-task": launch.cpus_per_node,
        "mem": f"{launch.memory_gib_per_node}G",
        "time": _slurm_time(launch.time_limit_h),
        "output": "%x-%j.log",
        # Before the time is up, and to the script alone: it hands it on to the run, not to Ray's processes.
        "signal": "B:TERM@120",
    }
    if wanted.gpus:
        options["gpus-per-node"] = wanted.gpus
    options |= {key: value for key in ("partition", "account") if (value := getattr(launch, key))}
    header = "".join(f"#SBATCH --{key}={value}\n" for key, value in options.items())
    resources = f"--num-cpus={launch.cpus_per_node} --num-gpus={wanted.gpus}"
    script = f"""\
#!/usr/bin/env bash
{header}
# Submit from the folder that holds this file: sbatch job.sbatch. hamr has to be on the PATH of every node.
set -euo pipefail
umask 077
# The token goes to the nodes through the environment: on a command line every user of a node could read it.
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
RAY_AUTH_TOKEN=$(python3 -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_TOKEN
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
head=${{nodes[0]}}
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{{print $1}}')
port=$((20000 + SLURM_JOB_ID % 20000))

srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \\
  ray start --head --node-ip-address="$address" --port="$port" --include-dashboard=false {resources} --block &
sleep 20
if (( ${{#nodes[@]}} > 1 )); then
  srun --nodes=$((${{#nodes[@]}} - 1)) --ntasks=$((${{#nodes[@]}} - 1)) --exclude="$head" --overlap \\
    ray start --address="$address:$port" {resources} --block &
fi
sleep 20
srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \\
  {command("conf")} cluster.address="$address:$port" &
run=$!
trap 'kill -TERM "$run"' TERM
code=0
wait "$run" || code=$?
# A signal ends the first wait before the run has ended.
if kill -0 "$run" 2>/dev/null; then
  code=0
  wait "$run" || code=$?
fi
exit "$code"
"""
    return {"job.sbatch": script, CONFIG_FILE: experiment_file(config, f"runs/{name_of(config)}")}


def _slurm_time(hours: float) -> str:
    minutes = math.ceil(hours * 60)
    return f"{minutes // 60}:{minutes % 60:02d}:00"


def plain(config: Config) -> dict[str, str]:
    """`head.sh`, `worker.sh` (on each of the others, with the head's address) and `train.sh` (on the head)."""
    launch, wanted = config.launch, nodes(config)
    resources = f"--num-cpus={launch.cpus_per_node} --num-gpus={wanted.gpus}"
    token = """\
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
if [[ -z ${RAY_AUTH_TOKEN:-} && ! -s ${RAY_AUTH_TOKEN_PATH:-$HOME/.ray/auth_token} ]]; then
  echo "no token: run 'ray get-auth-token --generate' once and copy ~/.ray/auth_token to every machine" >&2
  exit 2
fi
"""
    return {
        "head.sh": f"""\
#!/usr/bin/env bash
# Starts the head. usage: ./head.sh IP_OF_THIS_MACHINE    ({wanted.least} machines in all, this one included)
set -euo pipefail
ip=${{1:?usage: head.sh IP_OF_THIS_MACHINE}}
{token}exec ray start --head --node-ip-address="$ip" --port=6379 --dashboard-host=127.0.0.1 {resources} --block
""",
        "worker.sh": f"""\
#!/usr/bin/env bash
# Joins the cluster. usage: ./worker.sh IP_OF_THE_HEAD
set -euo pipefail
ip=${{1:?usage: worker.sh IP_OF_THE_HEAD}}
{token}exec ray start --address="$ip:6379" {resources} --block
""",
        "train.sh": f"""\
#!/usr/bin/env bash
# Runs the job from the head, in the folder of this file. usage: ./train.sh [overrides]
set -euo pipefail
cd "$(dirname "$0")"
{token}exec {command("conf")} "$@"
""",
        CONFIG_FILE: experiment_file(config, f"runs/{name_of(config)}"),
    }


KINDS: dict[str, Callable[[Config], dict[str, str]]] = {"kuberay": kuberay, "slurm": slurm, "ray": plain}
