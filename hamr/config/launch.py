"""Section of the files that start a cluster (`hamr plan launch=... output=...`): hardware and names of the nodes.

The number and size of the actors are not set here. They follow from `trainer`, `rollout` and `pools`.
"""

from __future__ import annotations

from typing import Literal

from hamr.config.section import PositiveFloat, PositiveInt, Section

LaunchKind = Literal["kuberay", "slurm", "ray"]


class LaunchConfig(Section):
    kind: LaunchKind | None = None
    """`kuberay`: RayCluster and RayJob. `slurm`: a batch script. `ray`: scripts for existing machines."""
    name: str | None = None
    """Name of the Kubernetes objects and of the batch job, after `hamr-`. null: the name of the experiment, or of the
    run folder in `hamr submit`."""
    image: str = "hamr:cuda"
    """Container image with hamr, as built by docker/Dockerfile.cuda or Dockerfile.cpu."""
    namespace: str = "default"
    """Kubernetes namespace."""
    secret: str | None = None
    """Kubernetes Secret whose entries become environment variables of every pod: WANDB_API_KEY, HF_TOKEN, keys of
    endpoints."""
    claim: str | None = None
    """PersistentVolumeClaim (ReadWriteMany) for run folders and models, mounted at `/mnt/hamr` in every pod. null:
    folders are lost with the pods."""
    partition: str | None = None
    """Slurm partition. null: the default one."""
    account: str | None = None
    """Slurm account, if required."""
    gpus_per_node: PositiveInt = 8
    """GPUs of a node."""
    cpus_per_node: PositiveInt = 96
    """CPUs of a node."""
    memory_gib_per_node: PositiveInt = 768
    """Memory of a node in GiB."""
    shared_memory_gib: PositiveInt = 64
    """Size of `/dev/shm` of a pod: Ray's object store and NCCL's buffers."""
    head_cpus: PositiveInt = 8
    """CPUs of the head on Kubernetes."""
    head_memory_gib: PositiveInt = 32
    """Memory of the head. On Kubernetes, the head runs the process of the job and none of its actors."""
    time_limit_h: PositiveFloat = 72.0
    """Time limit of the job in hours, above 0."""
    keep_finished_s: PositiveInt = 600
    """Time for which the cluster of a finished RayJob is kept."""
