"""Files that start a Ray cluster for one job: KubeRay manifests, a Slurm script, plain `ray start` scripts.

No file contains a secret. The cluster's token is generated where the cluster starts; other keys come from a Kubernetes
Secret or from the environment.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from hamr.apps.submit.launch_job import (
    EXPERIMENT,
    GivenCommand,
    Nodes,
    command,
    experiment_file,
    fill_template,
    name_of,
    nodes,
    ray_version,
)
from hamr.apps.submit.launch_scripts import plain, slurm
from hamr.config.launch import LaunchKind
from hamr.config.safe_yaml import load_yaml
from hamr.config.schema import Config

MOUNT = "/etc/hamr"
"""Mount path of the configuration in pods."""
CLAIM = "/mnt/hamr"
"""Mount path of run folders, data and models in pods."""


def render(
    config: Config, kind: LaunchKind, resume: str | None = None, given: GivenCommand | None = None
) -> dict[str, str]:
    """Return file contents by name (a path relative to their folder), for the run of `config`, for a run to `resume`,
    or for another command.

    `resume` is the run folder's path on the nodes. Raises CapacityError where an actor fits no node.
    """
    return KINDS[kind](config, resume, given)


def kuberay(config: Config, resume: str | None = None, given: GivenCommand | None = None) -> dict[str, str]:
    """Return `configmap.yaml`, `rayjob.yaml` (its own cluster, deleted at the end) and `raycluster.yaml` (a permanent
    one)."""
    name, launch = name_of(config), config.launch
    folder = f"{CLAIM}/runs/{name}"
    spec = cluster_spec(config, given.nodes if given is not None else None)
    entrypoint, retries = command(config, MOUNT, resume, given=given), 0
    if given is None and launch.claim is not None and (retries := config.experiment.max_restarts):
        # The operator deletes the cluster before it starts another one, so the lock of its run is stale.
        run = resume or config.experiment.run_dir or folder
        again, run = command(config, MOUNT, run), shlex.quote(run)
        entrypoint = f"if [ -f {run}/config.yaml ]; then rm -f {run}/run.lock; {again}; else {entrypoint}; fi"
    job = {
        "entrypoint": entrypoint,
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": launch.keep_finished_s,
        "activeDeadlineSeconds": math.ceil(launch.time_limit_h * 3600),
        # Each retry starts a new cluster. Without a claim, it would not have the run folder.
        "backoffLimit": retries,
        "rayClusterSpec": spec,
    }
    # On an autoscaling cluster, pending pools trigger new nodes, so the run must not refuse when none is free.
    elastic = config.cluster.elastic or "enableInTreeAutoscaling" in spec
    there = config.model_copy(update={"cluster": config.cluster.model_copy(update={"elastic": elastic})})
    text = experiment_file(there, folder)
    return {
        "configmap.yaml": _yaml(_object(config, "v1", "ConfigMap", data={f"{EXPERIMENT}.yaml": text})),
        "rayjob.yaml": _yaml(_object(config, "ray.io/v1", "RayJob", spec=job)),
        "raycluster.yaml": _yaml(_object(config, "ray.io/v1", "RayCluster", spec=spec)),
    }


def cluster_spec(config: Config, wanted: Nodes | None = None) -> dict[str, Any]:
    """Return the RayCluster spec. The operator creates the token's Secret and injects it into every pod (KubeRay >=
    1.5.1)."""
    text = fill_template(
        "raycluster.yaml",
        launch=config.launch,
        nodes=wanted or nodes(config),
        name=name_of(config),
        experiment=EXPERIMENT,
        mount=MOUNT,
        claim=CLAIM,
        ray_version=ray_version(),
    )
    return load_yaml(text)


def _object(config: Config, version: str, kind: str, **rest: Any) -> dict[str, Any]:
    metadata = {"name": name_of(config), "namespace": config.launch.namespace}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}


def _yaml(value: Mapping[str, Any]) -> str:
    # Without YAML aliases, for readability.
    dumper = type("_Plain", (yaml.SafeDumper,), {"ignore_aliases": lambda self, data: True})
    return yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)


KINDS: dict[str, Callable[[Config, str | None, GivenCommand | None], dict[str, str]]] = {
    "kuberay": kuberay,
    "slurm": slurm,
    "ray": plain,
}
