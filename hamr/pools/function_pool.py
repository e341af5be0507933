"""Process pool of one function of the user's own, with a deadline for each call.

A call that exceeds its deadline ends its process, and the next call starts another one. The time that a call waits for
a free process, or for the start of one, does not count.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from hamr.config.custom import CustomRewardConfig
from hamr.config.rewards import RewardsConfig
from hamr.errors import ConfigError, first_fault
from hamr.pools.chat_reply import ReplyMessage
from hamr.rewards.custom import FunctionOutcome, RewardSource, TimedSource
from hamr.rewards.function_process import HEADER, failure_from_reply, outcome_from_reply, read_frame, request_frame
from hamr.types import Answer, Failure, FunctionTimeout, Question, ScorerCall, ServiceSample

LOAD_S = 120.0
"""Maximum duration of loading a function, with everything that its file imports."""
ASYNC_CALLS = 64
"""Concurrent calls of an async function in one process."""
GRACE_S = 1.0
"""An async function's own process enforces the deadline. After this time it counts as blocked."""


class FunctionProcess:
    """A running process that has loaded its function."""

    def __init__(self, source: TimedSource) -> None:
        """Start the process and load the function. Blocks until it is ready. Raises ConfigError."""
        self._source = source
        self.ended = False
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hamr.rewards.function_process", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                # The working folder is last, so that a file there does not hide a module of the standard library.
                env={**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), os.getcwd()])},
                start_new_session=True,
            )
        try:
            loaded = self._load()
        except BaseException:
            self.kill()
            raise
        self.sha256: str | None = loaded["sha256"]
        self.is_async: bool = loaded["is_async"]

    async def connect(self) -> None:
        """Attach the process to the running event loop."""
        self._streams = await asyncio.open_unix_connection(sock=self._socket)
        self._reading = asyncio.create_task(self._read(self._streams[0]))

    async def answer(self, *request: Any) -> dict[str, Any] | Failure:
        """Return the reply to one call, or the failure of the process."""
        assert self._streams is not None, "connect comes first"
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._source.deadline_s + (GRACE_S if self.is_async else 0.0)):
                self._streams[1].write(request_frame((number, request)))
                return await future
        except TimeoutError:
            self.kill()
            return self._source.timeout()
        except EOFError:
            return self._source.failure(f"lost its process ({self._ending()})")
        except asyncio.CancelledError:
            if not self.is_async:
                self.kill()
            raise
        finally:
            del self._waiting[number]

    def _load(self) -> dict[str, Any]:
        self._socket.settimeout(LOAD_S)
        try:
            self._socket.sendall(request_frame(self._source))
            with self._socket.makefile("rb") as stream:
                loaded: dict[str, Any] = json.loads(read_frame(stream))
        except TimeoutError:
            remedy = f"was not loaded within {LOAD_S:g} s; move slow work into the function"
            raise self._source.error(remedy) from None
        except (OSError, EOFError):
            raise self._source.error(f"its process ended while it was loaded ({self._ending()})") from None
        if "error" in loaded:
            raise self._source.error(loaded["error"])
        return loaded

    def kill(self) -> None:
        """End the process and those that the function has started in its session."""
        if self.ended:
            return
        self.ended = True
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._streams is None:
            self._socket.close()
        else:
            self._streams[1].close()

    async def _read(self, stream: asyncio.StreamReader) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                (size,) = HEADER.unpack(await stream.readexactly(HEADER.size))
                reply = json.loads(await stream.readexactly(size))
                future = self._waiting.get(reply["number"])
                if future is not None and not future.done():
                    future.set_result(reply)
        self.kill()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(EOFError())

    def _ending(self) -> str:
        code = self._process.wait()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


class _Place:
    """One of the processes of a pool, started when it is needed."""

    def __init__(self, source: TimedSource) -> None:
        self._source, self._starting = source, asyncio.Lock()
        self.process: FunctionProcess | None = None

    async def running(self) -> FunctionProcess:
        async with self._starting:
            if self.process is None or self.process.ended:
                self.process = await asyncio.to_thread(FunctionProcess, self._source)
                await self.process.connect()
            return self.process


class FunctionPool:
    """Processes of one function. Bound to one event loop."""

    def __init__(self, source: TimedSource, processes: int) -> None:
        self._source = source
        self._places = [_Place(source) for _ in range(processes)]
        self._free: asyncio.Queue[_Place] = asyncio.Queue()
        self._starting = asyncio.Lock()
        self._started = False

    async def start(self) -> None:
        """Start the first process. Raises ConfigError if it cannot load the function."""
        async with self._starting:
            if self._started:
                return
            first = await self._places[0].running()
            for place in self._places * (ASYNC_CALLS if first.is_async else 1):
                self._free.put_nowait(place)
            self._started = True

    async def score(self, sample: ServiceSample, responses: Sequence[str]) -> Sequence[FunctionOutcome]:
        """Return the outcome of each response: one, or those of a group if the function is batched."""
        reply = await self._answer(sample, responses)
        if isinstance(reply, Failure):
            return [reply] * len(responses)
        return [outcome_from_reply(outcome) for outcome in reply["outcomes"]]

    async def reply(self, question: Question) -> Answer:
        """Return the message of an agent. An `Ask`: a failure of the function is a failure of the answer."""
        reply = await self._answer([dict(m) for m in question.messages], [dict(tool) for tool in question.tools])
        if not isinstance(reply, Failure) and "message" not in reply:
            reply = failure_from_reply(reply)
        if not isinstance(reply, Failure):
            try:
                message = ReplyMessage.model_validate(reply["message"])
                call = ScorerCall(pool=self._source.path, model=self._source.path, service_s=reply["seconds"])
                return Answer(text=message.text, tool_calls=message.tool_requests, call=call)
            except ValidationError as error:
                reply = self._source.failure(f"returned no valid message ({first_fault(error)})")
        timeout = isinstance(reply, FunctionTimeout)
        return Answer(failure="function_timeout" if timeout else "function_failed", detail=reply.detail)

    async def _answer(self, *request: Any) -> dict[str, Any] | Failure:
        try:
            await self.start()
            place = await self._free.get()
            try:
                return await (await place.running()).answer(*request)
            finally:
                self._free.put_nowait(place)
        except ConfigError as error:
            return self._source.failure(error.remedy)

    def close(self) -> None:
        for place in self._places:
            if place.process is not None:
                place.process.kill()


def read_sources(rewards: RewardsConfig) -> dict[str, RewardSource]:
    """Return the sources of the functions with a weight. Raises ConfigError."""
    return {name: RewardSource.of(name, section) for name, section in rewards.custom.items() if section.weight}


def check_functions(rewards: RewardsConfig) -> RewardsConfig:
    """Load every function with a weight in a process that then ends. Return the rewards with the files' digests.

    Raises:
        ConfigError: A function does not exist, cannot be imported, or cannot be called with the configured arguments.
    """
    found: dict[str, CustomRewardConfig] = {}
    for name, source in read_sources(rewards).items():
        process = FunctionProcess(source)
        process.kill()
        found[name] = rewards.custom[name].model_copy(update={"sha256": process.sha256})
    return rewards.model_copy(update={"custom": {**rewards.custom, **found}})
