"""Files that start a Ray cluster for one job: KubeRay manifests, a Slurm script, plain `ray start` scripts.

No file contains a secret. The cluster's token is generated where the cluster starts; other keys come from a Kubernetes
Secret or from the environment.
"""

from __future__ import annotations

import importlib.metadata
import math
import re
import secrets
import shlex
from collections.abc import Callable, Mapping, Sequence
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
)
from hamr.apps.submit.launch_scripts import plain, slurm
from hamr.apps.train.restarts import JOB
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
    words, retries = shlex.split(command(config, MOUNT, resume, given=given)), 0
    if given is None and launch.claim is not None and (retries := config.experiment.max_restarts):
        words = ["env", f"{JOB}={secrets.token_hex(8)}", *words]
    job = {
        "entrypoint": entrypoint_of(words),
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


def entrypoint_of(words: Sequence[str]) -> str:
    """Return the entrypoint of a RayJob that runs a command of these words.

    It is read as shell code twice: in the submitter's command line, where it is one simple command, and by Ray's job
    driver. In between, `ray job submit` escapes double quotes and puts them around words with spaces.

    >>> print(entrypoint_of(["hamr", "train", "data=/mnt/my data", "rewards.rules.terms=[a;b]"]))
    hamr train 'data=/mnt/my data' 'rewards.rules.terms=\\[a\\;b\\]'
    """
    return shlex.join(
        re.sub(r"([$`\\])" if re.search(r"\s", word) else r"([^\w@%+=:,./\"-])", r"\\\1", word) for word in words
    )


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
        ray_version=importlib.metadata.version("ray"),  # the nodes must have it, too
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
