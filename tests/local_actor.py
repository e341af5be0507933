"""The router actor's scoring methods in this process, without Ray."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

from hamr.pools.router_calls import ScoringStream, unpack


class LocalActor:
    """Answers as the router actor does, by way of a function of the arguments, without Ray."""

    def __init__(self, score: Any) -> None:
        self.streams = defaultdict[str, ScoringStream](lambda: ScoringStream(score))
        self.calls: list[list[Any]] = []
        self.cancelled: list[list[int]] = []
        self.start_scoring = Method(self._start)
        self.cancel_scoring = Method(self._cancel)
        self.results = Method(self._results)

    async def _value(self, value: Any) -> Any:
        return value

    def _start(self, stream: str, numbers: list[int], calls: bytes) -> Any:
        self.calls.append(unpack(calls))
        self.streams[stream].start(numbers, calls)
        return self._value(None)

    def _cancel(self, stream: str, numbers: list[int]) -> None:
        self.cancelled.append(numbers)
        self.streams[stream].cancel(numbers)

    async def _results(self, stream: str) -> AsyncIterator[Any]:
        async for done in self.streams[stream].results():
            yield self._value(done)


class Method:
    """A method of an actor's handle."""

    def __init__(self, call: Any) -> None:
        self.remote = call

    def options(self, *, num_returns: str) -> Method:
        assert num_returns == "streaming"
        return self
