"""Rollout workers: one vLLM engine per Ray actor; each response is returned as soon as it ends.

`dispatch.py` decides where and when a request starts. A worker that dies is replaced and gets the newest weights;
meanwhile, exactly the keys that had not arrived are repeated on any worker. A replacement that dies while it starts is
replaced after a back-off, up to `MAX_REPLACEMENTS` in `WINDOW_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hamr.cluster.actor_death import death_reason
from hamr.cluster.nodes import Reservation, at
from hamr.cluster.resource_requests import amounts, ray_options
from hamr.config.schema import ModelConfig, RolloutConfig
from hamr.errors import EngineDied
from hamr.garbage import collect_rarely
from hamr.protocols import GenerationRequest
from hamr.rollout.dispatch import Dispatcher
from hamr.types import Rollout, SampleKey

if TYPE_CHECKING:
    from ray.actor import ActorHandle

MAX_REPLACEMENTS = 5
"""Maximum replacements of one worker within `WINDOW_S`; the next death ends the run."""
WINDOW_S = 1800.0
"""Window of `MAX_REPLACEMENTS` in seconds. Starting an engine may take minutes."""
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 1.0, 30.0
"""Wait after the first and between later failed starts of one replacement."""
CONCURRENT_CALLS = 1000


class RolloutWorker:
    """Actor of one engine: transport only."""

    def __init__(
        self, model_path: str, config: RolloutConfig, model: ModelConfig, seed: int, adapter_rank: int = 0
    ) -> None:
        collect_rarely()
        from hamr.rollout.vllm_engine import VllmEngine

        self.engine = VllmEngine(
            model_path,
            config.engine,
            model.dtype,
            model.max_context,
            seed,
            transfer=config.transfer,
            sleeps=config.colocated,
            adapter_rank=adapter_rank,
        )

    async def generate(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[Rollout]:
        async for rollout in self.engine.generate(requests):
            yield rollout

    async def load_weights(self, path: str, version: int) -> float:
        return await self.engine.load_weights(path, version)

    async def load_adapter(self, files: Mapping[str, bytes], version: int) -> None:
        await self.engine.load_adapter(files, version)

    async def sleep(self, level: int) -> None:
        await self.engine.sleep(level)

    async def wake_up(self) -> None:
        await self.engine.wake_up()

    async def pid(self) -> int:
        return os.getpid()

    async def check(self) -> None:
        """Raise EngineDied if the engine cannot answer any more. On GPUs its core process may die before this one."""
        if not self.engine.alive:
            raise EngineDied("its engine has stopped")

    async def count_unfinished(self) -> int:
        return await self.engine.count_unfinished()

    async def worker_call(self, method: str, *args: Any) -> None:
        await self.engine.worker_call(method, *args)

    async def commit_version(self, version: int) -> None:
        await self.engine.commit_version(version)


@dataclass(kw_only=True, eq=False)
class _Slot:
    """Slot of a worker. The actor in it may be replaced; `life` counts the actors, `deaths` are the times of the
    latest deaths."""

    seed: int
    actor: ActorHandle
    life: int = 0
    deaths: list[float] = field(default_factory=list)
    answered_at: float = 0.0
    """Time of the latest response."""
    replacement: asyncio.Task[None] | None = None


class RolloutWorkers:
    """All workers behind one `generate` (protocols.RolloutEngine). Needs a running Ray."""

    def __init__(
        self,
        config: RolloutConfig,
        slots: Sequence[_Slot],
        spawn: Callable[[int], ActorHandle],
        start_timeout_s: float = 0.0,
    ) -> None:
        self.config = config
        self.start_timeout_s = start_timeout_s
        """Maximum time for the start of a worker, in seconds, if it is more than `rollout.deadline_s`."""
        self.replaced = 0
        self.version = 0
        self.last_prompt: tuple[int, ...] = ()
        self.rejoin: Callable[[], Awaitable[None]] | None = None
        """Connects all workers to the trainers again and sends the weights, after one was replaced."""
        self.weight_file = asyncio.Lock()
        """Held while the trainers write the file of weights, or a replacement reads it."""
        self._slots = list(slots)
        self._dispatcher = Dispatcher(len(slots), config.engine.max_num_seqs)
        self._spawn = spawn
        self._newest: tuple[str, Any] | None = None
        """Method that loads the newest weights, and its argument."""

    @classmethod
    async def start(
        cls,
        config: RolloutConfig,
        model: ModelConfig,
        model_path: Path,
        seed: int,
        *,
        place: Reservation | None = None,
        adapter_rank: int = 0,
        start_timeout_s: float = 0.0,
    ) -> RolloutWorkers:
        """Start `config.workers` actors and wait until their engines are ready. Worker i uses bundle i of `place`.

        With an `adapter_rank` the engines serve an adapter of at most this rank (`load_adapter`).

        Raises EngineDied if one does not start within `start_timeout_s` or `config.deadline_s`, whichever is longer.
        The same limit holds for the start of a replacement.
        """
        import ray

        from hamr.rollout.vllm_settings import engine_env

        engine = config.engine

        def spawn(worker_seed: int) -> ActorHandle:
            remote = ray.remote(RolloutWorker).options(
                **ray_options(amounts(engine)),
                **at(place, worker_seed - seed, engine.node_labels),
                max_concurrency=CONCURRENT_CALLS,
                max_restarts=0,
                runtime_env={"env_vars": engine_env(engine)},
            )
            return remote.remote(str(model_path), config, model, worker_seed, adapter_rank)

        slots = [_Slot(seed=seed + i, actor=spawn(seed + i)) for i in range(config.workers)]
        workers = cls(config, slots, spawn, start_timeout_s)
        try:
            await workers.pids()
        except BaseException:
            workers.shutdown()
            raise
        return workers

    # --- generation ---

    async def generate(self, requests: Sequence[GenerationRequest]) -> AsyncIterator[Rollout]:
        """Yield every key's response exactly once, in the order in which they end.

        Raises EngineDied after `deadline_s` without a response from the workers that serve the requests, or if
        replacements keep dying. Requests that wait for a slot have no deadline.
        """
        arrived: asyncio.Queue[Rollout | BaseException] = asyncio.Queue()
        waiting = {key for request in requests for key in request.keys}
        serving: list[tuple[_Slot, float]] = []
        tasks = [asyncio.create_task(self._serve(request, arrived, serving)) for request in requests]
        try:
            while waiting:
                item = await self._next(arrived, serving, len(waiting))
                if isinstance(item, BaseException):
                    raise item
                if item.key in waiting:
                    waiting.discard(item.key)
                    self.last_prompt = item.prompt_ids
                    yield item
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _next(
        self, arrived: asyncio.Queue[Rollout | BaseException], serving: Sequence[tuple[_Slot, float]], left: int
    ) -> Rollout | BaseException:
        clock, deadline_s = asyncio.get_running_loop().time, self.config.deadline_s
        while (due := deadline_s + max((max(s.answered_at, at) for s, at in serving), default=clock())) > clock():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):  # wait_for of Python 3.11 may swallow a cancellation
                    return await arrived.get()
        return EngineDied(f"no response in {deadline_s:g} s while {left} were due; see rollout.deadline_s")

    async def _serve(
        self,
        request: GenerationRequest,
        arrived: asyncio.Queue[Rollout | BaseException],
        serving: list[tuple[_Slot, float]],
    ) -> None:
        """Stream the responses to one request into `arrived`. If the worker dies, place the rest again.

        While a worker has the request, `serving` has its slot and the time of the placement.
        """
        from ray.exceptions import RayActorError, RayTaskError

        pending, clock = set(request.keys), asyncio.get_running_loop().time
        try:
            while pending:
                rest = _rest(request, pending)
                placement = await self._dispatcher.place(rest)
                slot = self._slots[placement.worker]
                life, own = slot.life, (slot, clock())
                serving.append(own)
                try:
                    async for rollout in _stream(slot.actor, [rest]):
                        slot.answered_at = clock()
                        pending.discard(rollout.key)
                        self._dispatcher.free(placement)
                        arrived.put_nowait(rollout)
                except (RayActorError, EngineDied) as error:
                    self._replace(slot, life, error)
                finally:
                    serving.remove(own)
                    self._dispatcher.free(placement, placement.left)
        except RayTaskError as error:  # the worker's own exception, without Ray's traceback
            arrived.put_nowait(error.cause)
        except Exception as error:
            arrived.put_nowait(error)

    def pause(self) -> AbstractAsyncContextManager[None]:
        """Run the body once all responses under way have ended. Requests that wait for a slot start after it."""
        return self._dispatcher.pause()

    # --- weights ---

    async def load_weights(self, path: Path, version: int) -> None:
        """Load the weights in `path` (one safetensors) into every engine as policy `version`.

        The file must exist until the next call, because a worker that is replaced later starts from it. Hold
        `weight_file` to overwrite it.
        """
        await self._load_everywhere("load_weights", str(path), version)

    async def load_adapter(self, files: Mapping[str, bytes], version: int) -> None:
        """Load the adapter of a PEFT folder with these files into every engine as policy `version`."""
        import ray

        await self._load_everywhere("load_adapter", ray.put(files), version)

    async def _load_everywhere(self, method: str, argument: Any, version: int) -> None:
        self._newest, self.version = (method, argument), version
        loads = [self._answer_or_replace(slot, "load weights", method, argument, version) for slot in self._slots]
        await asyncio.gather(*loads)

    async def commit_version(self, version: int) -> None:
        """Set the version of weights received over NCCL in every engine, and drop the old ones' KV cache.

        Raises EngineDied if a worker dies meanwhile. It is not replaced.
        """
        await asyncio.gather(*(self._in_time(s.actor.commit_version.remote(version), "commit") for s in self._slots))
        self.version = version

    async def settle(self) -> None:
        """Wait until every worker and its engine are alive and have their weights, and replace those that have died.

        Raises EngineDied if one dies too often.
        """
        await asyncio.gather(*(asyncio.shield(s.replacement) for s in self._slots if s.replacement is not None))
        await asyncio.gather(*(self._answer_or_replace(slot, "answer", "check") for slot in self._slots))

    async def _answer_or_replace(self, slot: _Slot, doing: str, method: str, *args: Any) -> None:
        """Wait for a worker's answer. If the worker dies or fails, wait until it is replaced."""
        life = slot.life
        try:
            await self._in_time(getattr(slot.actor, method).remote(*args), doing)
        except EngineDied as error:
            await asyncio.shield(self._replace(slot, life, error))

    async def sleep(self, level: int) -> None:
        """Release the GPU memory of all engines until `wake_up`. A replacement loads its weights before it sleeps.

        Level 1 keeps the weights on the host, 2 drops them. Workers that have died before are replaced. Raises
        EngineDied if one dies meanwhile.
        """
        await self.settle()
        await asyncio.gather(*(self._in_time(s.actor.sleep.remote(level), "fall asleep") for s in self._slots))

    async def wake_up(self) -> None:
        """Allocate the GPU memory of all engines again. Raises EngineDied if one has died; it is not replaced."""
        await asyncio.gather(*(self._in_time(s.actor.wake_up.remote(), "wake up") for s in self._slots))

    # --- lifecycle ---

    def _replace(self, slot: _Slot, life: int, error: Exception) -> asyncio.Task[None]:
        """Replace the actor that died of `error` in its `life`, unless that has begun. Return the replacement's task.

        The task is not part of a call, because a cancelled call must not leave an actor without the newest weights.
        """
        if slot.replacement is None or (slot.replacement.done() and slot.life == life):
            self._dispatcher.set_up(self._slots.index(slot), False)
            slot.replacement = asyncio.create_task(self._start_replacement(slot, error))
            slot.replacement.add_done_callback(lambda task: task.cancelled() or task.exception())
        return slot.replacement

    async def _start_replacement(self, slot: _Slot, error: Exception) -> None:
        """Start an actor with the newest weights instead of the one that died of `error`, with a back-off after starts
        that fail.

        Raises EngineDied, with the reason of the last death, once the worker has died too often within `WINDOW_S`.
        """
        backoff_s = FIRST_BACKOFF_S
        try:
            self._count_death(slot, error)
            while True:
                try:
                    await self._start_again(slot)
                    break
                except EngineDied as failed:
                    self._count_death(slot, failed)
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, LONGEST_BACKOFF_S)
        except Exception as failed:
            self._dispatcher.fail(failed)
            raise
        self._dispatcher.set_up(self._slots.index(slot), True)

    def _count_death(self, slot: _Slot, error: Exception) -> None:
        now = time.monotonic()
        slot.deaths = [then for then in slot.deaths if now - then < WINDOW_S] + [now]
        if len(slot.deaths) > MAX_REPLACEMENTS:
            raise EngineDied(
                f"rollout worker {self._slots.index(slot)} died {len(slot.deaths)} times within {WINDOW_S / 60:g} min, "
                f"the last error: {death_reason(error)}"
            ) from error

    async def _start_again(self, slot: _Slot) -> None:
        import ray

        # An actor whose engine thread died still holds its memory.
        ray.kill(slot.actor)
        slot.actor = self._spawn(slot.seed)
        slot.life += 1
        self.replaced += 1
        await self._in_time(slot.actor.pid.remote(), "start", self.start_timeout_s)
        if self.rejoin is not None:
            await self._in_time(self.rejoin(), "rejoin the weight transfer")
            return
        async with self.weight_file:
            if self._newest is not None:
                method, argument = self._newest
                await self._in_time(getattr(slot.actor, method).remote(argument, self.version), "load weights")

    async def _in_time(self, reference: Awaitable[Any], doing: str, at_least_s: float = 0.0) -> Any:
        """Return a worker's answer. Raises EngineDied if the worker dies, fails or does not answer in time.

        The limit is `rollout.deadline_s`, or `at_least_s` if that is longer. After a failed update the weights of its
        engine are unknown, so it is replaced like a dead one.
        """
        from ray.exceptions import RayActorError, RayTaskError

        limit_s = max(self.config.deadline_s, at_least_s)
        keys = "cluster.start_timeout_s and rollout.deadline_s" if at_least_s else "rollout.deadline_s"
        try:
            return await asyncio.wait_for(reference, limit_s)
        except TimeoutError as error:
            raise EngineDied(f"a rollout worker did not {doing} in {limit_s:g} s; see {keys}") from error
        except RayActorError as error:
            raise EngineDied(f"a rollout worker died before it could {doing}: {death_reason(error)}") from error
        except RayTaskError as error:
            raise EngineDied(f"a rollout worker could not {doing}: {death_reason(error.cause)}") from error

    async def pids(self) -> list[int]:
        """Return the process ids of the workers, in order."""
        limit_s = self.start_timeout_s
        return list(await asyncio.gather(*(self._in_time(s.actor.pid.remote(), "start", limit_s) for s in self._slots)))

    @property
    def handles(self) -> list[ActorHandle]:
        """Return the actors, for the client that drives a transfer over NCCL."""
        return [slot.actor for slot in self._slots]

    def shutdown(self) -> None:
        import ray

        for slot in self._slots:
            if slot.replacement is not None:
                slot.replacement.cancel()
            with contextlib.suppress(ray.exceptions.RayActorError):
                ray.kill(slot.actor)


async def _stream(actor: ActorHandle, requests: list[GenerationRequest]) -> AsyncIterator[Rollout]:
    """Yield an actor's responses. If the caller is cancelled, abort in the engine those that have not arrived."""
    import ray

    stream = actor.generate.options(num_returns="streaming").remote(requests)
    try:
        async for reference in stream:
            yield await reference
    except asyncio.CancelledError:
        ray.cancel(stream)
        raise


def _rest(request: GenerationRequest, pending: set[SampleKey]) -> GenerationRequest:
    """Return `request` restricted to the keys in `pending`, with their seeds."""
    kept = [(key, seed) for key, seed in zip(request.keys, request.seeds, strict=True) if key in pending]
    return replace(request, keys=tuple(key for key, _ in kept), seeds=tuple(seed for _, seed in kept))
