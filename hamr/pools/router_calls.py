"""Batched transport of responses to the router and of records back.

An actor call costs milliseconds in two processes, whatever its size. One call per response would limit a router that
handles 2,000 responses per second to about 200. So one call is on its way at a time and takes all responses that have
come meanwhile, and the records of all calls return on one stream, those of `GATHER_S` together.

The stream belongs to one instance of the actor: when that dies, the stream fails, and with it every response without a
record. The restarted actor gets a new stream.

Values are pickled here, because Ray's own pickler calls into Python for every object of every record.
"""

from __future__ import annotations

import asyncio
import itertools
import pickle
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from hamr.types import RewardRecord

GATHER_S = 0.001
MOST = 64
"""Maximum number of responses in one call."""
Arguments = tuple[Any, ...]
RouterResult = RewardRecord | Exception
"""A response's record, or the error that the router raised."""


def pack(value: Any) -> bytes:
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)


def unpack(value: bytes) -> Any:
    """Inverse of `pack`, in a process of the same run."""
    return pickle.loads(value)


class ScoringStream:
    """Actor's side of one client: scores its responses concurrently and yields what is done."""

    def __init__(self, score: Callable[..., Awaitable[RewardRecord]]) -> None:
        self._score = score
        self._tasks: dict[int, asyncio.Future[RewardRecord]] = {}
        self._done: list[tuple[int, RouterResult]] = []
        self._some = asyncio.Event()

    def start(self, numbers: Sequence[int], calls: bytes) -> None:
        """Start scoring the responses `numbers`, whose packed arguments are `calls`."""
        for number, arguments in zip(numbers, unpack(calls), strict=True):
            task = self._tasks[number] = asyncio.ensure_future(self._score(*arguments))
            task.add_done_callback(partial(self._end, number))

    def cancel(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            if number in self._tasks:
                self._tasks[number].cancel()

    async def results(self) -> AsyncIterator[bytes]:
        """Yield packed lists of (number, result), without an end. Closing it cancels what is under way."""
        try:
            while True:
                await self._some.wait()
                if self._tasks:
                    await asyncio.sleep(GATHER_S)
                done, self._done = self._done, []
                self._some.clear()
                yield _packed_results(done)
        finally:
            self.cancel(list(self._tasks))

    def _end(self, number: int, task: asyncio.Future[RewardRecord]) -> None:
        del self._tasks[number]
        self._done.append((number, _result(task)))
        self._some.set()


def _result(task: asyncio.Future[RewardRecord]) -> RouterResult:
    if task.cancelled():
        return RuntimeError("the router cancelled this response")
    error = task.exception()
    if error is None:
        return task.result()
    return error if isinstance(error, Exception) else RuntimeError(f"the router raised {error!r}")


def _packed_results(done: Sequence[tuple[int, RouterResult]]) -> bytes:
    """Pack results. An error that cannot be pickled is replaced by its text, so that the other records are not lost."""
    try:
        return pack(done)
    except Exception:
        return pack([(n, RuntimeError(repr(found)) if isinstance(found, Exception) else found) for n, found in done])


class RouterCalls:
    """Driver's side: gathers responses into calls of `actor`, a RouterActor. Use in one event loop."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._numbers = itertools.count()
        self._futures: dict[int, asyncio.Future[RewardRecord]] = {}
        self._unsent: dict[int, Arguments] = {}
        self._given_up: list[int] = []
        self._stream = ""
        self._reader: asyncio.Task[None] | None = None
        self._sender: asyncio.Task[None] | None = None

    async def score(self, *arguments: Any) -> RewardRecord:
        """Return the record. Raises RayActorError if the actor dies first, and any error of the router."""
        loop = asyncio.get_running_loop()
        number, future = next(self._numbers), loop.create_future()
        self._futures[number], self._unsent[number] = future, arguments
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())
        try:
            return await future
        finally:
            answered, sent = self._futures.pop(number, None) is None, self._unsent.pop(number, None) is None
            if sent and not answered:
                if not self._given_up:
                    loop.call_soon(self._cancel)
                self._given_up.append(number)

    async def _send(self) -> None:
        """Send until nothing is unsent. A busy actor answers later, so its calls become larger instead of queueing."""
        await asyncio.sleep(GATHER_S)
        while self._unsent:
            if self._reader is None or self._reader.done():
                self._stream = uuid.uuid4().hex
                self._reader = asyncio.create_task(self._read(self._stream))
            calls = {number: self._unsent.pop(number) for number in list(self._unsent)[:MOST]}
            await self._call(self._stream, list(calls), list(calls.values()))

    async def _call(self, stream: str, numbers: Sequence[int], arguments: Sequence[Arguments]) -> None:
        try:
            await self._actor.start_scoring.remote(stream, numbers, pack(arguments))
        except Exception as error:
            self._settle((number, error) for number in numbers)

    async def _read(self, stream: str) -> None:
        """Settle responses until the stream fails, then fail all others."""
        try:
            async for part in self._actor.results.options(num_returns="streaming").remote(stream):
                self._settle(unpack(await part))
            raise RuntimeError("the router ended its stream of records")
        except Exception as error:
            self._settle((number, error) for number in list(self._futures))

    def _settle(self, results: Iterable[tuple[int, RouterResult]]) -> None:
        for number, result in results:
            future = self._futures.pop(number, None)
            if future is None or future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

    def _cancel(self) -> None:
        numbers, self._given_up = self._given_up, []
        self._actor.cancel_scoring.remote(self._stream, numbers)
