"""Weight transfer from the trainers to the rollout workers, behind protocols.WeightSync.

`SharedMemorySync` passes one safetensors file through `/dev/shm`, for trainers and engines on one host, on any device.
`DeviceSync` uses vLLM's own transfer API: NCCL between hosts, CUDA IPC between a rank and the engine on its GPU.
`AdapterSync` sends a LoRA adapter only. All reset the engines' prefix cache, and can afterwards compare the
log-probabilities of trainer and engine on the same tokens, the only check that detects a stale weight.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hamr.models.weights import NcclAddress, engine_init, logprob_gap
from hamr.protocols import PROBE_RUN, GenerationRequest, Metrics, SamplingConfig
from hamr.types import SampleKey, TrainGroup, TrainSequence

if TYPE_CHECKING:
    from hamr.rollout.workers import RolloutWorkers
    from hamr.trainer.actors import TrainerGroup

PROBE_PROMPT = 128
PROBE_SAMPLES = 4
"""Responses per worker."""
PROBE_TOKENS = 8
"""Tokens of the comparison. It compares weights, so a longer prompt would cost a second and show nothing more."""
SHARED_MEMORY = "/dev/shm"


class SharedMemorySync:
    """Weight transfer by one safetensors file in the shared memory of the trainers' host, overwritten at each sync.

    The trainers name and remove the file on the host where they write it. It exists until `close`, because a replaced
    worker starts from it. It does so after a write that is under way, with the new version. Files of dead runs are
    removed at the start. This process does not access the files, because it may be on another node.
    """

    def __init__(self, trainers: TrainerGroup, rollout: RolloutWorkers, directory: str | Path = SHARED_MEMORY) -> None:
        self._trainers, self._rollout, self._directory = trainers, rollout, Path(directory)
        self._path: Path | None = None

    async def open(self, wanted: int = 0) -> Path:
        """Create the weight file and return its path. Raises BadInput if less than `wanted` bytes are free there."""
        self._path = await self._trainers.share_weights(self._directory, wanted)
        return self._path

    async def sync(self, version: int) -> Metrics:
        """Transfer the weights as policy `version`.

        Returns:
            `timing/sync/write` and `timing/sync/load` in seconds, and `rollout/logprob_diff/*` if enabled.
        """
        path = self._path or await self.open()
        start = time.perf_counter()
        async with self._rollout.weight_file:
            await self._trainers.write_weights(path)
        written = time.perf_counter()
        await self._rollout.load_weights(path, version)
        return await _measure(self._trainers, self._rollout, version, start, written)

    async def close(self) -> None:
        """Remove the file from shared memory. Call it after the last write."""
        await self._trainers.remove_weights()


class AdapterSync:
    """Transfer of a LoRA adapter through Ray, to engines on any nodes, which serve it on the weights of the start."""

    def __init__(self, trainers: TrainerGroup, rollout: RolloutWorkers) -> None:
        self._trainers, self._rollout = trainers, rollout

    async def sync(self, version: int) -> Metrics:
        """Send the adapter's files to the rollout workers as weights of this version. Return the times in seconds."""
        start = time.perf_counter()
        files = await self._trainers.adapter_files()
        written = time.perf_counter()
        await self._rollout.load_adapter(files, version)
        return await _measure(self._trainers, self._rollout, version, start, written)


class DeviceSync:
    """Weight transfer between GPUs: a broadcast from trainer rank 0 over NCCL, or CUDA IPC (`rollout.transfer`).

    `open` connects both sides. A worker that is replaced has neither the connection nor the weights: all connect again,
    and the weights are sent again. `sync` first replaces workers that have died, or whose engine has. One that dies
    later, during the transfer or before it has the new version, leaves the others in it, which ends the run.
    """

    def __init__(self, trainers: TrainerGroup, rollout: RolloutWorkers) -> None:
        self._trainers, self._rollout = trainers, rollout
        self._opened = False
        self._one_at_a_time = asyncio.Lock()

    async def open(self) -> None:
        """Connect ranks and engines for transfers over NCCL or CUDA IPC."""
        config, address = self._rollout.config, None
        tensor_parallel = config.engine.tensor_parallel_size
        if config.transfer == "nccl":
            # Rank 0 listens, so the host and the port are those of its node; this process may be on another node.
            host, port = await self._trainers.meeting_point()
            address = NcclAddress(host, port, 1 + len(self._rollout.handles) * tensor_parallel)
        await self._trainers.open_transfer(address, RolloutClient(self._rollout.handles, tensor_parallel))
        self._opened = True
        self._rollout.rejoin = self.rejoin

    async def rejoin(self) -> None:
        """Connect again after a worker was replaced, and send the weights of the current version.

        While asynchronous training is ahead of the engines, they get its newer weights under the older version number,
        which overstates the age of a few tokens until the next sync.
        """
        async with self._one_at_a_time:
            await self.open()
            await self._trainers.send_weights()
            await self._rollout.commit_version(self._rollout.version)

    async def sync(self, version: int) -> Metrics:
        """Send the weights to the engines and set their version. Return the times in seconds."""
        await self._rollout.settle()  # a replacement joins, for which it needs the lock
        async with self._one_at_a_time:
            if not self._opened:
                await self.open()
            start = time.perf_counter()
            await self._trainers.send_weights()
            sent = time.perf_counter()
            await self._rollout.commit_version(version)
        return await _measure(self._trainers, self._rollout, version, start, sent)


class RolloutClient:
    """Client by which vLLM's sender drives the engines (its VLLMWeightSyncClient). Lives in trainer rank 0."""

    def __init__(self, handles: Sequence[Any], tensor_parallel_size: int) -> None:
        self._handles = list(handles)
        self._tensor_parallel_size = tensor_parallel_size

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Connect every engine, each with ranks of its own.

        vLLM would overwrite the communicator of an earlier connection without destroying it, so the engines leave that
        connection first.
        """
        self._all("shutdown_weight_transfer_engine")
        per_engine = [engine_init(init_info, i, self._tensor_parallel_size) for i in range(len(self._handles))]
        self._all("init_weight_transfer_engine", [(info,) for info in per_engine])

    def start_weight_update(self) -> None:
        self._all("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self._all("update_weights", [(update_info,)] * len(self._handles))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._all("finish_weight_update")

    def _all(self, method: str, args: Sequence[tuple[Any, ...]] | None = None) -> None:
        import ray

        per_handle = args or [()] * len(self._handles)
        ray.get([h.worker_call.remote(method, *a) for h, a in zip(self._handles, per_handle, strict=True)])


async def _measure(
    trainers: TrainerGroup, rollout: RolloutWorkers, version: int, start: float, written: float
) -> Metrics:
    """Return `timing/sync/{write,load}` of a transfer that ends now, in seconds, and the check of the new weights.

    The check is `rollout/logprob_diff/{mean,max}`: engine against trainer on a few fresh tokens of each worker, at
    temperature 1, after the end of the last response's prompt. One request per worker is placed before any has ended,
    and each goes to the worker with the fewest tokens under way, so that all idle workers get one. It is left out
    if `rollout.check_logprobs` is off or nothing was generated yet.
    """
    times = {"timing/sync/write": written - start, "timing/sync/load": time.perf_counter() - written}
    if not rollout.config.check_logprobs or not rollout.last_prompt:
        return times
    prompt = rollout.last_prompt[-PROBE_PROMPT:]
    requests = [
        GenerationRequest(
            prompt_ids=prompt,
            keys=tuple(SampleKey(run=PROBE_RUN, step=version, prompt="", sample=i) for i in own),
            seeds=tuple(own),
            sampling=SamplingConfig(temperature=1.0, top_p=1.0, max_new_tokens=PROBE_TOKENS),
        )
        for first in range(0, rollout.config.workers * PROBE_SAMPLES, PROBE_SAMPLES)
        for own in (range(first, first + PROBE_SAMPLES),)
    ]
    responses = [response async for response in rollout.generate(requests)]
    group = TrainGroup(prompt_ids=prompt, sequences=tuple(TrainSequence(token_ids=r.token_ids) for r in responses))
    [trained] = await trainers.logprobs([group])
    engine = [logprob for response in responses for logprob in response.logprobs]
    gap = logprob_gap(engine, [float(logprob) for sequence in trained for logprob in sequence])
    return times | {"rollout/logprob_diff/mean": gap.mean, "rollout/logprob_diff/max": gap.max}
