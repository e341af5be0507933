"""Batched transport of responses to the router and of records back.

An actor call costs milliseconds in two processes, whatever its size. One call per response would limit a router that
handles 2,000 responses per second to about 200. Batching delays an item by at most `GATHER_S` in either direction, or
`LONGEST_S` if many follow each other. A record is returned when it is done, independently of the other responses of its
call.

Values are pickled here, because Ray's own pickler calls into Python for every object of every record.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from hamr.types import RewardRecord

GATHER_S = 0.002
LONGEST_S = 0.01
"""Maximum delay of a finished record while others of its call follow closely."""
MOST = 64
"""Maximum number of responses in one call."""
Arguments = tuple[Any, ...]
Done = list[tuple[int, RewardRecord | Exception]]
"""(position in the call, its record or the error that the router raised)."""


def pack(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def unpack(value: bytes) -> Any:
    """Inverse of `pack`, in a process of the same run."""
    return pickle.loads(value)


def packed_done(done: Done) -> bytes:
    """Pack results. An error that cannot be pickled is replaced by its text, so that the other records are not lost."""
    try:
        return pack(done)
    except Exception:
        in_words = [(i, RuntimeError(repr(found)) if isinstance(found, Exception) else found) for i, found in done]
        return pack(in_words)


async def in_batches(score: Callable[..., Awaitable[RewardRecord]], calls: Sequence[Arguments]) -> AsyncIterator[Done]:
    """Run all of `calls` concurrently on the router and yield what has finished since the last yield."""
    loop = asyncio.get_running_loop()
    ended: Done = []
    some = asyncio.Event()

    def note(index: int, task: asyncio.Future[RewardRecord]) -> None:
        ended.append((index, _result(task)))
        some.set()

    tasks = [asyncio.ensure_future(score(*call)) for call in calls]
    for index, task in enumerate(tasks):
        task.add_done_callback(partial(note, index))
    left = len(tasks)
    try:
        while left:
            await some.wait()
            seen, until = 0, loop.time() + LONGEST_S
            while seen < len(ended) < left and loop.time() < until:
                seen = len(ended)
                await asyncio.sleep(GATHER_S)
            done = ended[:]
            ended.clear()
            some.clear()
            left -= len(done)
            yield done
    finally:
        for task in tasks:
            task.cancel()


def _result(task: asyncio.Future[RewardRecord]) -> RewardRecord | Exception:
    if task.cancelled():
        return RuntimeError("the router cancelled this response")
    error = task.exception()
    if error is None:
        return task.result()
    return error if isinstance(error, Exception) else RuntimeError(f"the router raised {error!r}")


class RouterCalls:
    """Driver's side: gathers responses into calls of `actor.score_many`. Use in one event loop."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._gathered: list[tuple[Arguments, asyncio.Future[RewardRecord]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    async def score(self, *arguments: Any) -> RewardRecord:
        """Return the record. Raises RayActorError if the actor dies first, and any error of the router."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[RewardRecord] = loop.create_future()
        self._gathered.append((arguments, future))
        if len(self._gathered) >= MOST:
            self._send()
        elif self._timer is None:
            self._timer = loop.call_later(GATHER_S, self._send)
        return await future

    def _send(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        asked = [(arguments, future) for arguments, future in self._gathered if not future.done()]
        self._gathered = []
        if asked:
            task = asyncio.create_task(self._call(asked))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def _call(self, asked: Sequence[tuple[Arguments, asyncio.Future[RewardRecord]]]) -> None:
        """Run one call until each response has a record, the actor has died, or all callers were cancelled."""
        futures = [future for _, future in asked]
        try:
            calls = pack([arguments for arguments, _ in asked])
            stream = self._actor.score_many.options(num_returns="streaming").remote(calls)
        except Exception as error:
            for future in futures:
                _settle(future, error)
            return
        reader = asyncio.create_task(_read(stream, futures))
        await asyncio.wait([reader, asyncio.create_task(asyncio.wait(futures))], return_when=asyncio.FIRST_COMPLETED)
        if not reader.done():
            import ray

            # Do not cancel the call's requests to the pools: others may wait for the same answers.
            ray.cancel(stream, recursive=False)
            reader.cancel()


async def _read(stream: Any, futures: Sequence[asyncio.Future[RewardRecord]]) -> None:
    try:
        async for part in stream:
            for index, result in unpack(await part):
                _settle(futures[index], result)
    except Exception as error:
        for future in futures:
            _settle(future, error)
    else:
        for future in futures:
            _settle(future, RuntimeError("the router ended a call without a record"))


def _settle(future: asyncio.Future[RewardRecord], result: RewardRecord | Exception) -> None:
    """Set the future's result unless its caller was cancelled."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
