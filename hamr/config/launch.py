"""The section of the files that start a cluster (`hamr plan launch=... output=...`): what a node has and is called.

How many actors of which size a run needs is not said here: that follows from `trainer`, `rollout` and `pools`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from hamr.config.section import Section

LaunchKind = Literal["kuberay", "slurm", "ray"]


class LaunchConfig(Section):
    kind: LaunchKind | None = None
    """`kuberay`: RayCluster and RayJob. `slurm`: a batch script. `ray`: scripts for machines that are just there."""
    name: str | None = None
    """Of the objects in Kubernetes and of the batch job, after `hamr-`; null: the experiment's, and `hamr submit` takes
    the run folder's."""
    image: str = "hamr:cuda"
    """Container image with hamr in it, as docker/Dockerfile.cuda or Dockerfile.cpu build it."""
    namespace: str = "default"
    secret: str | None = None
    """Kubernetes Secret whose entries become environment variables of every pod: WANDB_API_KEY, HF_TOKEN, keys of
    endpoints."""
    claim: str | None = None
    """PersistentVolumeClaim (ReadWriteMany) for run folders and models, at `/mnt/hamr` in every pod; null: folders
    go with the pods."""
    partition: str | None = None
    account: str | None = None
    """Slurm's, where it wants them."""
    gpus_per_node: PositiveInt = 8
    cpus_per_node: PositiveInt = 96
    memory_gib_per_node: PositiveInt = 768
    shared_memory_gib: PositiveInt = 64
    """`/dev/shm` of a pod: Ray's object store and NCCL's buffers."""
    head_cpus: PositiveInt = 8
    head_memory_gib: PositiveInt = 32
    """The head runs the job's own process and none of its actors on Kubernetes."""
    time_limit_h: PositiveFloat = 72.0
    keep_finished_s: PositiveInt = 600
    """How long a finished RayJob's cluster stays."""
