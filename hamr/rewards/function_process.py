"""Process of one function of the user's own: `python -m hamr.rewards.function_process SOCKET`, a file descriptor.

Frames are a length (four bytes) and a body. The first request is a `TimedSource`. Its reply says whether the
function was loaded. Each further request is (number, arguments), and its reply has the number and the returned values.
Requests are pickles of the process that started this one; replies are JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import traceback
from typing import Any, BinaryIO

from hamr.errors import ConfigError
from hamr.rewards.custom import FunctionOutcome, TimedSource
from hamr.security.functions import LoadedFunction
from hamr.types import Failure, FunctionFailed, FunctionTimeout, Scored

HEADER = struct.Struct(">I")


def frame(body: bytes) -> bytes:
    """Return the body after its length, as `read_frame` expects it."""
    return HEADER.pack(len(body)) + body


def request_frame(request: TimedSource | tuple[int, tuple[Any, ...]]) -> bytes:
    """Return the frame of a request: the source to load, or a call with its number."""
    return frame(pickle.dumps(request, pickle.HIGHEST_PROTOCOL))


def read_frame(stream: BinaryIO) -> bytes:
    """Return the next body. Raise EOFError at the end of the stream."""
    header = stream.read(HEADER.size)
    body = stream.read(HEADER.unpack(header)[0]) if len(header) == HEADER.size else b""
    if len(header) < HEADER.size or len(body) < HEADER.unpack(header)[0]:
        raise EOFError("the other process has ended")
    return body


def outcome_from_reply(reply: dict[str, Any]) -> FunctionOutcome:
    """Return the outcome that the process has sent as JSON."""
    return Scored(value=reply["value"]) if "value" in reply else failure_from_reply(reply)


def failure_from_reply(reply: dict[str, Any]) -> Failure:
    """Return the failure that the process has sent as JSON."""
    kind = FunctionTimeout if reply["kind"] == FunctionTimeout.kind else FunctionFailed
    return kind(detail=reply["detail"])


def main(descriptor: int) -> None:
    """Load the source that the socket `descriptor` names, and answer calls until the parent closes it."""
    # Ray's processes have it blocked, and children inherit that: a function could not end its own by `terminate()`.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    with socket.socket(fileno=descriptor) as connection:
        requests, replies = connection.makefile("rb"), connection.makefile("wb")

        def reply(message: dict[str, Any]) -> None:
            replies.write(frame(json.dumps(message).encode()))
            replies.flush()

        source: TimedSource = pickle.loads(read_frame(requests))
        try:
            function = source.load()
        except ConfigError as error:
            reply({"error": error.remedy})
            return
        reply({"sha256": function.sha256, "is_async": function.is_async})
        asyncio.run(_serve(source, function, requests, reply))


async def _serve(source: TimedSource, function: LoadedFunction, requests: BinaryIO, reply: Any) -> None:
    """Answer requests until the process ends.

    A separate thread reads them, so that the process ends with its parent even if the function does not return.
    """
    loop = asyncio.get_running_loop()
    running: set[asyncio.Task[None]] = set()

    async def answer(number: int, request: tuple[Any, ...]) -> None:
        reply({"number": number, **await source.answer(function, *request)})

    def begin(number: int, request: tuple[Any, ...]) -> None:
        task = loop.create_task(answer(number, request))
        running.add(task)
        task.add_done_callback(running.discard)

    def read() -> None:
        try:
            while True:
                loop.call_soon_threadsafe(begin, *pickle.loads(read_frame(requests)))
        except EOFError:
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    await loop.create_future()


if __name__ == "__main__":
    main(int(sys.argv[1]))
