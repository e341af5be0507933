"""Weight transfer without Ray or a trainer: shared-memory files, NCCL settings, comparison of log-probabilities."""

from __future__ import annotations

import math
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from hamr.errors import BadInput
from hamr.security.processes import alive, pid_namespace

PREFIX = "hamr-weights-"


def weight_file(directory: str | Path, run: str) -> Path:
    """Return `<directory>/hamr-weights-<namespace>-<pid>-<run>.safetensors`; the pid in its namespace is the owner."""
    return Path(directory) / f"{_own_prefix()}{os.getpid()}-{run}.safetensors"


def _own_prefix() -> str:
    """Return the start of the names of this PID namespace's files. Containers may share the directory."""
    return f"{PREFIX}{re.sub(r'[^0-9]', '', pid_namespace()) or 0}-"


def sweep_stale(directory: str | Path) -> list[Path]:
    """Remove and return the weight files of this user's runs in this container whose process has ended. Keep all
    others."""
    removed = []
    prefix = _own_prefix()
    for file in Path(directory).glob(f"{prefix}*.safetensors"):
        owner = file.name.removeprefix(prefix).partition("-")[0]
        with suppress(OSError):  # another run has removed it
            if owner.isdigit() and file.stat().st_uid == os.getuid() and not alive(int(owner)):
                file.unlink()
                removed.append(file)
    return removed


def check_shared_room(directory: str | Path, wanted: int) -> None:
    """Raise BadInput if this host's shared memory cannot hold `wanted` bytes."""
    free = shutil.disk_usage(directory).free if Path(directory).is_dir() else 0
    if free < wanted:
        room = f"{free / 1e9:.1f} GB free on {socket.gethostname()}, {wanted / 1e9:.1f} GB needed"
        raise BadInput("rollout.transfer", str(directory), f"{room} for weights on their way; enlarge it")


class LogprobGap(NamedTuple):
    """|log p - log q| over tokens: mean and max (nats)."""

    mean: float
    max: float


def logprob_gap(engine: Sequence[float], trainer: Sequence[float]) -> LogprobGap:
    """Return the difference of the engine's and the trainer's log-probabilities of the same tokens.

    Without tokens it is 0. Tokens at which both are minus infinity agree.
    """
    if len(engine) != len(trainer):
        raise ValueError(f"{len(engine)} engine and {len(trainer)} trainer log-probabilities; they must be of one text")
    gaps = [0.0 if a == b else abs(a - b) for a, b in zip(engine, trainer, strict=True)]
    return LogprobGap(math.fsum(gaps) / len(gaps), max(gaps)) if gaps else LogprobGap(0.0, 0.0)


# --- NCCL and CUDA IPC, through vLLM's own transfer API ------------------------------------------------------


class NcclAddress(NamedTuple):
    """Rendezvous of trainer rank 0, which listens there, and the engines' workers. `world_size` counts both."""

    host: str
    port: int
    world_size: int


def open_sender(
    address: NcclAddress | None,
    rank: int,
    client: Any,
    metadata: Callable[[], Sequence[tuple[str, Any, tuple[int, ...]]]],
    weights: Callable[[], Iterator[tuple[str, Any]]],
) -> Any:
    """Return vLLM's sending side of one trainer rank, once every engine has joined.

    Over NCCL rank 0 sends, and the others only take part in the gather. Over CUDA IPC every rank shares its memory with
    the engine on its GPU. The caller commits the engines' version after `send_weights`.

    Args:
        address: Rendezvous of NCCL, or None for CUDA IPC.
        client: Drives the engines (hamr.trainer.weight_sync.RolloutClient).
        metadata: Returns (name, dtype, shape) of the tensors that `weights` yields, without gathering.
        weights: Yields every (name, full tensor) at each call, the tied head included.
    """
    with unchanged_attention():
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    return WeightTransferTrainerFactory.trainer_init(
        trainer_info(address, rank, metadata()), client=client, source=weight_source(metadata, weights)
    )


@contextmanager
def unchanged_attention() -> Iterator[None]:
    """Keep torch's choice of cuDNN attention while the body runs: vLLM's import switches it off for the process."""
    import torch

    enabled = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled)


def trainer_info(
    address: NcclAddress | None, rank: int, metadata: Sequence[tuple[str, Any, tuple[int, ...]]] = ()
) -> Any:
    """Return vLLM's settings of the sending side for tensors of these names, dtypes and shapes."""
    if address is None:
        from vllm.distributed.weight_transfer.ipc_engine import DEFAULT_PACKED_BUFFER_SIZE_BYTES, IPCTrainerInitInfo

        # vLLM refuses a tensor that its buffer does not hold. The default of 1 GiB is less than a large embedding.
        largest = max((math.prod(shape) * dtype.itemsize for _, dtype, shape in metadata), default=0)
        size = max(DEFAULT_PACKED_BUFFER_SIZE_BYTES, largest)
        return IPCTrainerInitInfo(rank=rank, packed=True, packed_buffer_size_bytes=size)
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    return NCCLTrainerInitInfo(
        master_address=address.host, master_port=address.port, world_size=address.world_size, rank=rank
    )


def engine_init(init_info: Mapping[str, Any], engine: int, tensor_parallel_size: int) -> dict[str, Any]:
    """Return the receiving side's settings for engine number `engine`.

    vLLM numbers the workers within an engine, so independent engines would all use rank 1. Each gets its own offset
    after the sender. CUDA IPC has no ranks.
    """
    if "rank_offset" not in init_info:
        return dict(init_info)
    return {**init_info, "rank_offset": 1 + engine * tensor_parallel_size}


def weight_source(
    metadata: Callable[[], Sequence[tuple[str, Any, tuple[int, ...]]]],
    weights: Callable[[], Iterator[tuple[str, Any]]],
) -> Any:
    """Wrap two functions as vLLM's WeightSource, whose base class exists only once vLLM is imported."""
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class Source(WeightSource):
        def metadata(self) -> list[Any]:
            return [ParamMeta(name, dtype, tuple(shape)) for name, dtype, shape in metadata()]

        def __iter__(self) -> Iterator[tuple[str, Any]]:
            return iter(weights())

    return Source()
