"""Files that start a Ray cluster for one job: KubeRay manifests, a Slurm script, plain `ray start` scripts.

The shell scripts and the RayCluster are templates in `templates/`.

No file contains a secret. The cluster's token is generated where the cluster starts; other keys come from a Kubernetes
Secret or from the environment.
"""

from __future__ import annotations

import importlib.metadata
import math
import re
import secrets
import shlex
from collections.abc import Callable, Sequence
from typing import Any

import yaml

from hamr.apps.shared.templates import render_file
from hamr.apps.submit.launch_job import (
    CONFIG_FILE,
    EXPERIMENT,
    GivenCommand,
    command,
    experiment_file,
    name_of,
    nodes,
)
from hamr.apps.train.restarts import JOB
from hamr.config.launch import LaunchKind
from hamr.config.safe_yaml import load_yaml
from hamr.config.schema import Config
from hamr.errors import BadInput

PACKAGE = "hamr.apps.submit"
MOUNT = "/etc/hamr"
"""Mount path of the configuration in pods."""
CLAIM = "/mnt/hamr"
"""Mount path of run folders, data and models in pods."""
WORK = "work"
"""Folder next to a Slurm job's script with the copy of the working folder."""


def render(
    config: Config, kind: LaunchKind, resume: str | None = None, given: GivenCommand | None = None
) -> dict[str, str]:
    """Return file contents by name (a path relative to their folder), for the run of `config`, for a run to `resume`,
    or for another command.

    `resume` is the run folder's path on the nodes. Raises CapacityError where an actor fits no node.
    """
    return KINDS[kind](config, resume, given)


def kuberay(config: Config, resume: str | None, given: GivenCommand | None) -> dict[str, str]:
    """Return `configmap.yaml`, `rayjob.yaml` (its own cluster, deleted at the end) and `raycluster.yaml` (a permanent
    one).

    The operator creates the token's Secret and injects it into every pod (KubeRay >= 1.5.1).
    """
    name, launch = name_of(config), config.launch
    text = render_file(
        PACKAGE,
        "raycluster.yaml",
        launch=launch,
        nodes=nodes(config, given),
        name=name,
        experiment=EXPERIMENT,
        mount=MOUNT,
        claim=CLAIM,
        ray_version=importlib.metadata.version("ray"),  # the nodes must have it, too
    )
    spec = load_yaml(text)
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
    experiment = experiment_file(there, f"{CLAIM}/runs/{name}")
    return {
        "configmap.yaml": _manifest(config, "v1", "ConfigMap", data={f"{EXPERIMENT}.yaml": experiment}),
        "rayjob.yaml": _manifest(config, "ray.io/v1", "RayJob", spec=job),
        "raycluster.yaml": _manifest(config, "ray.io/v1", "RayCluster", spec=spec),
    }


def entrypoint_of(words: Sequence[str]) -> str:
    """Return the entrypoint of a RayJob that runs a command of these words.

    It is read as shell code twice: in the submitter's command line, where it is one simple command, and by Ray's job
    driver. In between, `ray job submit` escapes double quotes and puts them around words with spaces.

    >>> print(entrypoint_of(["hamr", "train", "data=/mnt/my data", "rewards.rules.terms=[a;b]"]))
    hamr train 'data=/mnt/my data' 'rewards.rules.terms=\\[a\\;b\\]'
    """
    if broken := next((word for word in words if "\n" in word), None):
        raise BadInput("command", broken, "has a line break, which would end the entrypoint of a RayJob; remove it")
    return shlex.join(
        re.sub(r"([$`\\])" if re.search(r"[ \t]", word) else r"([^\w@%+=:,./\"-])", r"\\\1", word) for word in words
    )


def _manifest(config: Config, version: str, kind: str, **rest: Any) -> str:
    metadata = {"name": name_of(config), "namespace": config.launch.namespace}
    value = {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}
    # Without YAML aliases, for readability.
    dumper = type("_Plain", (yaml.SafeDumper,), {"ignore_aliases": lambda self, data: True})
    return yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120)


def slurm(config: Config, resume: str | None, given: GivenCommand | None) -> dict[str, str]:
    """Return `job.sbatch`: Ray on every node of the allocation with a token of its own, then the run on the first
    node."""
    launch, wanted = config.launch, nodes(config, given)
    minutes = math.ceil(launch.time_limit_h * 60)
    options = {
        "job-name": name_of(config),
        "nodes": wanted.least,
        "ntasks-per-node": 1,
        "cpus-per-task": launch.cpus_per_node,
        "mem": f"{launch.memory_gib_per_node}G",
        "time": f"{minutes // 60}:{minutes % 60:02d}:00",
        "output": "%x-%j.log",
        # Signal the script before the time limit. The script forwards the signal to the run, not to Ray's processes.
        "signal": "B:TERM@120",
    }
    if wanted.gpus:
        options["gpus-per-node"] = wanted.gpus
    options |= {key: value for key in ("partition", "account") if (value := getattr(launch, key))}
    run_line = command(config, '"$SLURM_SUBMIT_DIR/conf"', resume, program="python3 -m hamr", given=given)
    script = _fill("job.sbatch", config, wanted.gpus, options=options, command=run_line, work=WORK)
    return {"job.sbatch": script, CONFIG_FILE: experiment_file(config, f"runs/{name_of(config)}")}


def plain(config: Config, resume: str | None, given: GivenCommand | None) -> dict[str, str]:
    """Return `head.sh`, `worker.sh` (for each other machine, with the head's address) and `train.sh` (for the head)."""
    wanted = nodes(config, given)
    values = {"machines": wanted.least, "command": command(config, "conf", resume, given=given)}
    scripts = {name: _fill(name, config, wanted.gpus, **values) for name in ("head.sh", "worker.sh", "train.sh")}
    return {**scripts, CONFIG_FILE: experiment_file(config, f"runs/{name_of(config)}")}


def _fill(template: str, config: Config, gpus: int, **values: object) -> str:
    cpus = config.launch.cpus_per_node
    resources = f"--num-cpus={cpus} --num-gpus={gpus}"
    return render_file(PACKAGE, template, cpus=cpus, resources=resources, **values)


KINDS: dict[str, Callable[[Config, str | None, GivenCommand | None], dict[str, str]]] = {
    "kuberay": kuberay,
    "slurm": slurm,
    "ray": plain,
}
