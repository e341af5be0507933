"""Trainer group: N Ray actors that form one DeepSpeed process group, behind protocols.Trainer."""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hamr import signals
from hamr.cluster.actor_death import death_reason
from hamr.cluster.nodes import Reservation, ask_nodes, at
from hamr.cluster.resource_requests import amounts, ray_options
from hamr.config.algorithm import AlgorithmConfig
from hamr.config.schema import ModelConfig, TrainerConfig
from hamr.errors import EngineDied, HamrError
from hamr.garbage import collect_rarely
from hamr.models.cpu_env import ALLOCATOR_ENV, WAITING_ENV
from hamr.models.weights import check_shared_room, sweep_stale, weight_file
from hamr.protocols import Metrics
from hamr.security.functions import FunctionSource
from hamr.types import TrainBatch, TrainGroup

if TYPE_CHECKING:
    from ray.actor import ActorHandle

    from hamr.models.weights import NcclAddress

GRACE_S = 5.0
"""Seconds to wait for other ranks' errors after the first. A rank that lost its peer reports a closed connection, and
the peer's death, which is the cause, may be reported a moment later."""

FILES = "files"
"""Concurrency group of the actors in which a copied state is written while the others run."""

REMOVE_S = 10.0
"""Longest wait for rank 0's host to remove a file. The next run on that host removes remaining files."""
REMOVE_STOPPED_S = 2.0
"""The same wait when a signal ends the run."""


class TrainerRank:
    """Actor of one rank: transport only."""

    def __init__(self, rank: int, world: int) -> None:
        collect_rarely()
        self.rank, self.world = rank, world
        self.trainer: Any = None

    def meeting_point(self) -> tuple[str, int]:
        """Return this rank's host and a free port, which no other process gets until this rank listens on it.

        Importing torch takes seconds. In this time Ray's processes open many ports. A server that sets SO_REUSEADDR, as
        those of torch and vLLM do, may listen on the port of a bound socket.
        """
        import ray

        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("", 0))
        return ray.util.get_node_ip_address(), self._held.getsockname()[1]

    def set_up(self, config: TrainerConfig, algorithm: AlgorithmConfig, model_path: Path, **settings: Any) -> int:
        """Build this rank's trainer. Return the process id."""
        from hamr.trainer.deepspeed_trainer import DeepSpeedTrainer

        self.trainer = DeepSpeedTrainer(config, algorithm, model_path, rank=self.rank, world=self.world, **settings)
        return os.getpid()

    def share_weights(self, directory: Path, wanted: int) -> tuple[Path, str]:
        """Create a file for this process's weights in this host's shared memory. Return its path and the node's id.

        Files of dead runs are removed first.
        """
        import ray

        sweep_stale(directory)
        check_shared_room(directory, wanted)
        path = weight_file(directory, uuid.uuid4().hex[:8])
        atexit.register(path.unlink, missing_ok=True)
        return path, ray.get_runtime_context().get_node_id()

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the trainer on this rank. Only rank 0 returns the result."""
        result = getattr(self.trainer, method)(*args, **kwargs)
        return result if self.rank == 0 else None


class TrainerGroup:
    """All ranks as one trainer (protocols.Trainer). Needs a running Ray.

    Every wait ends after `config.deadline_s` at the latest, except that for the start (see `start`). An error of a rank
    is raised unchanged. If a rank dies, this call and all later ones raise EngineDied, because a process group cannot
    continue without a rank.
    """

    def __init__(self, config: TrainerConfig, model: ModelConfig, actors: Sequence[ActorHandle]) -> None:
        self.config = config
        self.pids: tuple[int, ...] = ()
        self._shared: tuple[Path, str] | None = None
        self._model = model
        self._actors = list(actors)

    @classmethod
    async def start(
        cls,
        config: TrainerConfig,
        algorithm: AlgorithmConfig,
        model: ModelConfig,
        model_path: Path,
        total_steps: int,
        seed: int,
        temperature: float,
        place: Reservation | None = None,
        loss: FunctionSource | None = None,
        exports: bool = False,
        asynchronous: bool = False,
        start_timeout_s: float = 0.0,
    ) -> TrainerGroup:
        """Start `config.ranks` actors and wait until all have loaded the model.

        Args:
            temperature: Temperature of the rollouts, so that the loss uses the distribution that was sampled from.
            place: Placement group; rank i is placed in bundle i.
            loss: The user's loss function.
            exports: Engines read the weights over CUDA IPC.
            asynchronous: `copy_state` will be called.
            start_timeout_s: Maximum time for loading the model, in seconds, if it is more than `config.deadline_s`.
        """
        import ray

        # With a concurrency group, Ray runs the other methods in a thread of their own too.
        actor: Any = ray.remote(concurrency_groups={FILES: 1}) if asynchronous else ray.remote

        def spawn(rank: int) -> ActorHandle:
            remote = actor(TrainerRank).options(
                **ray_options(amounts(config)),
                **at(place, rank, config.node_labels),
                max_restarts=0,
                runtime_env={"env_vars": trainer_env(config, exports=exports)},
            )
            return remote.remote(rank, config.ranks)

        group = cls(config, model, [spawn(rank) for rank in range(config.ranks)])
        try:
            host, port = await group.meeting_point()
            meeting_point = f"tcp://{host}:{port}"
            settings = dict(
                total_steps=total_steps, seed=seed, temperature=temperature, init_method=meeting_point, loss=loss
            )
            starts = [a.set_up.remote(config, algorithm, Path(model_path), **settings) for a in group._actors]
            group.pids = tuple(await group._wait(starts, start_timeout_s))
        except BaseException:
            await group.shutdown()
            raise
        return group

    # --- protocols.Trainer ---

    async def train(self, batch: TrainBatch) -> Metrics:
        """Run the optimiser steps of one batch. Return metrics over all ranks (see DeepSpeedTrainer.train)."""
        import ray

        return await self._all("train", ray.put(batch))

    async def save(self, folder: Path) -> None:
        """Write `folder/policy` (Hugging Face) and `folder/trainer` (optimiser, random state, schedule)."""
        await self._all("save", Path(folder).absolute())

    async def copy_state(self, folder: Path) -> Callable[[], Awaitable[None]]:
        """Copy what `save` writes to host memory. Return the function that writes it to `folder` during training."""
        await self._all("copy_state", Path(folder).absolute())

        async def write() -> None:
            group = {"concurrency_group": FILES}
            await self._wait([a.call.options(**group).remote("write_copy") for a in self._actors])

        return write

    async def save_policy(self, folder: Path) -> None:
        """Write `folder/policy` only, which suffices to start a stage with a fresh optimiser."""
        await self._all("save_policy", Path(folder).absolute())

    async def load(self, folder: Path) -> None:
        """Restore exactly the state of `save`. Call right after `start` or `reset`."""
        await self._all("load", Path(folder).absolute())

    # --- beyond the protocol ---

    async def offload_states(self) -> None:
        """Move what only an optimiser step needs to the host, until the next call that needs it."""
        await self._all("offload_states")

    async def logprobs(self, groups: Sequence[TrainGroup], temperature: float = 1.0) -> list[list[tuple[float, ...]]]:
        """Return log p of every completion token, by group, sequence and token."""
        import ray

        return await self._all("logprobs", ray.put(list(groups)), temperature=temperature)

    async def write_weights(self, path: Path) -> None:
        """Write every weight in the engines' dtype to one safetensors file, the tied head included."""
        await self._all("write_weights", Path(path).absolute(), self._model.dtype)

    async def adapter_files(self) -> dict[str, bytes]:
        """Return the files of the LoRA adapter on the model that the trainers started from."""
        return await self._all("adapter_files")

    async def share_weights(self, directory: Path, wanted: int) -> Path:
        """Create a file for `write_weights` in the shared memory of rank 0's host.

        Raises BadInput if less than `wanted` bytes are free there.
        """
        self._shared = await self._first("share_weights", directory, wanted)
        return self._shared[0]

    async def remove_weights(self) -> None:
        """Remove that file from rank 0's host, also if the rank is dead."""
        if self._shared is not None:
            (path, node), self._shared = self._shared, None
            limit = REMOVE_S if signals.pending_signal() is None else REMOVE_STOPPED_S
            await asyncio.to_thread(ask_nodes, [node], limit, lambda: path.unlink(missing_ok=True))

    async def reset(self, model_path: Path, *, config: TrainerConfig, total_steps: int) -> None:
        """Start a new stage from the model in `model_path`, in the same processes.

        Raises ValueError if `config` changes the number of ranks or the backend.
        """
        for key in ("ranks", "backend"):
            old, new = getattr(self.config, key), getattr(config, key)
            if old != new:
                raise ValueError(f"trainer.{key} cannot change from {old} to {new} in a running group")
        await self._all("reset", Path(model_path), config=config, total_steps=total_steps)
        self.config = config

    async def meeting_point(self) -> tuple[str, int]:
        """Return rank 0's host and a free port on it."""
        return await self._first("meeting_point")

    async def open_transfer(self, address: NcclAddress | None, client: Any) -> None:
        """Connect to the rollout engines for broadcasts over NCCL, or over CUDA IPC if there is no address."""
        await self._all("open_transfer", address, client)

    async def send_weights(self) -> None:
        """Send all weights to the engines."""
        await self._all("send_weights")

    async def shutdown(self) -> None:
        """End the actors. Ignores actors that are dead already; safe to call twice."""
        import ray

        while self._actors:
            ray.kill(self._actors.pop())

    # --- waiting ---

    async def _all(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return _rank_0s(await self._wait([a.call.remote(method, *args, **kwargs) for a in self._actors]))

    async def _first(self, method: str, *args: Any) -> Any:
        """Call a method of rank 0's actor, not of its trainer."""
        return _rank_0s(await self._wait([getattr(a, method).remote(*args) for a in self._actors[:1]]))

    async def _wait(self, refs: Sequence[Any], at_least_s: float = 0.0) -> list[Any]:
        """Return one result per rank, or raise the error that explains the others.

        The limit is `trainer.deadline_s`, or `at_least_s` if that is longer.
        """
        if not refs:
            return []
        limit_s = max(self.config.deadline_s, at_least_s)
        keys = "cluster.start_timeout_s and trainer.deadline_s" if at_least_s else "trainer.deadline_s"
        tasks = [asyncio.ensure_future(ref) for ref in refs]
        try:
            done, pending = await asyncio.wait(tasks, timeout=limit_s, return_when=asyncio.FIRST_EXCEPTION)
            if pending and any(t.exception() for t in done):
                await asyncio.wait(pending, timeout=GRACE_S)
            errors = {r: e for r, t in enumerate(tasks) if t.done() and (e := t.exception())}
            if errors:
                raise _explaining(errors)
            late = [rank for rank, t in enumerate(tasks) if not t.done()]
            if late:
                raise EngineDied(f"trainer rank {late[0]} did not answer in {limit_s:g} s; see {keys}")
            return [t.result() for t in tasks]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _rank_0s(results: Sequence[Any]) -> Any:
    if not results:
        raise EngineDied("the trainer group was shut down")
    return results[0]


def _explaining(errors: dict[int, BaseException]) -> BaseException:
    """Select the error to raise: a death, that of a rank first, then an error of hamr's, then the lowest rank's.

    A rank fails with the death of another actor where it sends weights to a rollout worker that dies.
    """
    from ray.exceptions import RayActorError, RayTaskError

    deaths = {rank: e for rank, e in errors.items() if isinstance(e, RayActorError)}
    for rank, e in sorted(deaths.items(), key=lambda item: isinstance(item[1], RayTaskError)):
        remote = isinstance(e, RayTaskError)
        who = "a rollout worker died during the transfer of weights" if remote else f"trainer rank {rank} died"
        died = EngineDied(f"{who}: {death_reason(e.cause if remote else e)}")
        died.__cause__ = e
        return died
    own = [e.cause if isinstance(e, RayTaskError) else e for e in errors.values()]
    return next((e for e in own if isinstance(e, HamrError)), own[0])


def trainer_env(config: TrainerConfig, *, exports: bool = False) -> dict[str, str]:
    """Return the environment of a trainer's process: own thread count, sleeping idle threads, no network downloads.

    `exports`: engines read its memory over CUDA IPC.
    """
    env = {
        "OMP_NUM_THREADS": str(config.threads),
        **WAITING_ENV,
        "TOKENIZERS_PARALLELISM": "false",
        "DS_BUILD_OPS": "0",
    }
    if config.backend == "gloo":
        # DeepSpeed compiles an unused optimiser, for which torch loads Inductor: 0.5 s and 45 MB.
        env |= {"DS_ACCELERATOR": "cpu", "TORCHDYNAMO_DISABLE": "1", **ALLOCATOR_ENV}
    elif not exports:
        # Batches differ in length; blocks of fixed size would leave gaps that no later batch fits in. Exporting such
        # memory takes the permission to trace the process, which Ubuntu gives to its parents only.
        env["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    for name in ("HF_HUB_OFFLINE", "HF_HOME", "HAMR_CACHE"):
        if name in os.environ:
            env[name] = os.environ[name]
    return env
