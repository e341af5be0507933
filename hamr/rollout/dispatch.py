"""Dispatch of requests to rollout workers.

A request waits until a worker has a free slot, and starts on the one with the fewest tokens under way. A worker that is
slow, has long responses, or is being replaced thus gets fewer of the following requests. A response does not depend on
its worker, only on its key and seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from hamr.protocols import PROBE_RUN, GenerationRequest
from hamr.types import SampleKey


@dataclass(kw_only=True, eq=False)
class _Load:
    """Unfinished responses of a worker, and their tokens: prompts, and responses of maximum length."""

    responses: int = 0
    tokens: int = 0
    up: bool = True


@dataclass(kw_only=True, eq=False)
class Placement:
    """A request on a worker. `left` of its responses are unfinished; `tokens` are those of one."""

    worker: int
    left: int
    tokens: int


class Dispatcher:
    """Queue of requests in front of `workers` engines that run `slots` responses each.

    The samples of a request stay on one worker, where they share the prefill of their prompt. A request starts as soon
    as one of its responses can; the others wait in the engine, which therefore has no free slot while requests wait.

    A dialogue stays on the worker that has its earlier turns in the prefix cache if that has a free slot, and its next
    turn starts before new dialogues do.
    """

    def __init__(self, workers: int, slots: int) -> None:
        self._slots = slots
        self._loads = [_Load() for _ in range(workers)]
        self._queue: list[tuple[bool, bool, int, GenerationRequest, asyncio.Future[Placement]]] = []
        self._count = 0
        self._homes: OrderedDict[SampleKey, int] = OrderedDict()
        self._error: Exception | None = None
        self._paused, self._idle = False, asyncio.Event()

    async def place(self, request: GenerationRequest) -> Placement:
        """Wait for a free slot and take it. Raises the error of `fail`."""
        future: asyncio.Future[Placement] = asyncio.get_running_loop().create_future()
        self._count += 1
        key = request.keys[0]
        heapq.heappush(self._queue, (key.run != PROBE_RUN, key.turn == 0, self._count, request, future))
        self._start()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and not future.exception():
                self.free(future.result(), future.result().left)
            raise

    def free(self, placement: Placement, responses: int = 1) -> None:
        """Free the slots of responses that ended or were cancelled."""
        placement.left -= responses
        load = self._loads[placement.worker]
        load.responses -= responses
        load.tokens -= responses * placement.tokens
        self._start()
        if not self._running:
            self._idle.set()

    @contextlib.asynccontextmanager
    async def pause(self) -> AsyncIterator[None]:
        """Run the body once the placed responses have ended. Requests that wait for a slot start after it."""
        self._paused = True
        try:
            while self._running:
                self._idle.clear()
                await self._idle.wait()
            yield
        finally:
            self._paused = False
            self._start()

    def set_up(self, worker: int, up: bool) -> None:
        """Start requests on the worker again, or start none until then."""
        self._loads[worker].up = up
        self._start()

    def fail(self, error: Exception) -> None:
        """Raise `error` for all requests that wait, now or later."""
        self._error = error
        self._start()

    @property
    def _running(self) -> int:
        return sum(load.responses for load in self._loads)

    def _start(self) -> None:
        while self._queue and (self._error or self._free_workers()):
            if self._paused and self._queue[0][0] and not self._error:
                return
            *_, request, future = heapq.heappop(self._queue)
            if future.cancelled():
                continue
            if self._error is not None:
                future.set_exception(self._error)
                continue
            worker = self._choose(request.keys[0], self._free_workers())
            tokens = len(request.prompt_ids) + request.sampling.max_new_tokens
            placement = Placement(worker=worker, left=len(request.keys), tokens=tokens)
            self._loads[worker].responses += placement.left
            self._loads[worker].tokens += placement.left * tokens
            future.set_result(placement)

    def _free_workers(self) -> list[int]:
        return [i for i, load in enumerate(self._loads) if load.up and load.responses < self._slots]

    def _choose(self, key: SampleKey, free: Sequence[int]) -> int:
        dialogue = replace(key, turn=0)
        worker = self._homes.pop(dialogue, -1) if key.turn else -1
        if worker not in free:
            worker = min(free, key=lambda i: self._loads[i].tokens)
        self._homes[dialogue] = worker
        # An engine caches the prefixes of about as many dialogues as it runs.
        if len(self._homes) > 2 * self._slots * len(self._loads):
            self._homes.popitem(last=False)
        return worker
