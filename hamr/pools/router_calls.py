"""Responses on their way to the router and records on their way back: those that come together travel together.

A call of an actor costs milliseconds of two processes, whatever it carries; a record of its own for each response would
hold a router that takes 2,000 a second to some 200. Nothing waits for its neighbours beyond `GATHER_S` on either way,
`LONGEST_S` where many follow each other: a record comes back when it is done, however long the rest of its call may
take.

What travels is packed here: Ray's own pickler asks Python about every object of every record.
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
"""Of a record that is done, while others of its call follow it closely."""
MOST = 64
"""Responses in one call."""
Arguments = tuple[Any, ...]
Done = list[tuple[int, RewardRecord | Exception]]
"""(position in the call, its record or what the router raised)."""


def pack(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def unpack(value: bytes) -> Any:
    """What `packed` made, in a process of the same run."""
    return pickle.loads(value)


def packed_done(done: Done) -> bytes:
    """An error that cannot travel goes in words, and costs nobody else a record."""
    try:
        return pack(done)
    except Exception:
        in_words = [(i, RuntimeError(repr(found)) if isinstance(found, Exception) else found) for i, found in done]
        return pack(in_words)


async def in_batches(score: Callable[..., Awaitable[RewardRecord]], calls: Sequence[Arguments]) -> AsyncIterator[Done]:
    """The router's side: all of `calls` at once, and what has ended since the last time."""
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
    """The driver's side: gathers responses into calls of `actor.score_many`. Lives in one event loop."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._gathered: list[tuple[Arguments, asyncio.Future[RewardRecord]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    async def score(self, *arguments: Any) -> RewardRecord:
        """The record. Raises RayActorError when the actor dies before it, and what the router raised."""
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
        """One call, until each of its responses has a record, the actor is gone, or nobody waits any more."""
        futures = [future for _, future in asked]
        calls = pack([arguments for arguments, _ in asked])
        stream = self._actor.score_many.options(num_returns="streaming").remote(calls)
        reader = asyncio.create_task(_read(stream, futures))
        await asyncio.wait([reader, asyncio.create_task(_all_done(futures))], return_when=asyncio.FIRST_COMPLETED)
        if not reader.done():
            import ray

            # Not what the call has asked of the pools: others may wait for the same answers.
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


async def _all_done(futures: Sequence[asyncio.Future[RewardRecord]]) -> None:
    await asyncio.wait(futures)


def _settle(future: asyncio.Future[RewardRecord], result: RewardRecord | Exception) -> None:
    """Unless whoever asked has left."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
    else:
        future.set_result(result)
