"""The user's own functions: calling one. Runs in a process of its own.

    def politeness(sample, response) -> float | None        # or async def
    def novelty(samples, responses) -> list[float]          # `batch: true`: the responses of one group
    def reply(messages, tools) -> str | dict                # an agent that `hamr evaluate` tests

Whatever is not a number from -1e6 to 1e6, or for an agent not a message, is a typed failure with the name of the
function, never a reward of 0.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from hamr.security.functions import (
    NUMBER,
    FunctionSource,
    LoadedFunction,
    describe_error,
    describe_value,
    load_function,
    read_number,
)
from hamr.types import Failure, FunctionFailed, FunctionTimeout, Scored, ServiceSample

if TYPE_CHECKING:
    from hamr.config.custom import CustomRewardConfig

FunctionOutcome = Scored | Failure
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class TimedSource(FunctionSource, ABC):
    """A function that is called in a process, with a deadline. `name` names it in failures."""

    name: str
    deadline_s: float

    @abstractmethod
    def load(self) -> LoadedFunction:
        """Import the module or file and return the function. Call it in a process of its own.

        Raises ConfigError if the function does not fit.
        """

    @abstractmethod
    async def answer(self, function: LoadedFunction, *request: Any) -> dict[str, Any]:
        """Return the reply of the loaded function to a request, as JSON."""

    async def run(self, function: LoadedFunction, *given: Any, convert: Callable[[Any], T]) -> T | Failure:
        """Call the function and convert its value. `convert` may raise _Unusable.

        The deadline ends an async function only. The caller has to end the process of one that does not return.
        """
        limit = asyncio.timeout(self.deadline_s)
        try:
            async with limit:
                value = function(*given)
                if inspect.isawaitable(value):
                    value = await value
            return convert(value)
        except _Unusable as error:
            return self.failure(str(error))
        except BaseException as error:  # a function may raise anything, and nothing cancels its task from outside
            if limit.expired():
                return self.timeout()
            return self.failure(f"raised {describe_error(error, self)}")

    def failure(self, what: str) -> FunctionFailed:
        """Return the failure of a call that the function did not answer as it has to. `what` continues its name."""
        return FunctionFailed(detail=f"{self.name} ({self.path}) {what}")

    def timeout(self) -> FunctionTimeout:
        """Return the failure of a call that exceeded the deadline."""
        return FunctionTimeout(detail=f"{self.name} ({self.path}) did not return within {self.deadline_s:g} s")


@dataclass(frozen=True, kw_only=True)
class RewardSource(TimedSource):
    """A reward function. `name` is that of its component."""

    batch: bool = False

    @classmethod
    def of(cls, name: str, config: CustomRewardConfig) -> RewardSource:
        """Read the function's file. Raises ConfigError as `FunctionSource.of_config` does."""
        key = f"rewards.custom.{name}"
        return cls.of_config(key, config, name=name, deadline_s=config.deadline_s, batch=config.batch)

    def load(self) -> LoadedFunction:
        return load_function(self, ("samples", "responses") if self.batch else ("sample", "response"))

    async def answer(self, function: LoadedFunction, *request: Any) -> dict[str, Any]:
        return {"outcomes": [_as_reply(outcome) for outcome in await self.score(function, *request)]}

    async def score(
        self, function: LoadedFunction, sample: ServiceSample, responses: Sequence[str]
    ) -> tuple[FunctionOutcome, ...]:
        """Return the outcome of each response. Without `batch` there is one response."""
        count = len(responses)
        given = ([sample] * count, list(responses)) if self.batch else (sample, *responses)
        values = await self.run(
            function, *given, convert=lambda value: _values(value, count) if self.batch else [value]
        )
        if isinstance(values, Failure):
            return (values,) * count
        return tuple(self._outcome(value) for value in values)

    def _outcome(self, value: Any) -> FunctionOutcome:
        if (number := read_number(value)) is not None:
            return Scored(value=number)
        return self.failure(f"returned {describe_value(value)}; {NUMBER}")


@dataclass(frozen=True, kw_only=True)
class AgentSource(TimedSource):
    """An agent: `reply(messages, tools)` returns its text, or a message {"content", "tool_calls"}. `name` is the option
    that names it."""

    def load(self) -> LoadedFunction:
        return load_function(self, ("messages", "tools"))

    async def answer(self, function: LoadedFunction, *request: Any) -> dict[str, Any]:
        """Return the message and the seconds of the call, or its failure."""
        begun = time.monotonic()
        message = await self.run(function, *request, convert=_message)
        if isinstance(message, Failure):
            return _as_reply(message)
        return {"message": message, "seconds": time.monotonic() - begun}


def _as_reply(outcome: FunctionOutcome) -> dict[str, Any]:
    if isinstance(outcome, Scored):
        return {"value": outcome.value}
    return {"kind": outcome.kind, "detail": outcome.detail}


def _message(value: Any) -> dict[str, Any]:
    """Return an agent's message. Clients' own objects (`model_dump`) are accepted. A refusal is read as the text."""
    dumped = value.model_dump() if hasattr(value, "model_dump") else value
    found = {"content": dumped} if isinstance(dumped, str) else dumped
    content = None
    if isinstance(found, dict):
        content = found.get("refusal") if found.get("content") is None else found["content"]
    if not isinstance(found, dict) or not (isinstance(content, str | list) or found.get("tool_calls")):
        shown = describe_value(value)
        raise _Unusable(f"returned {shown}; return the text of the reply, or a message with content or tool_calls")
    try:
        return dict(json.loads(json.dumps({"content": content, "tool_calls": found.get("tool_calls")})))
    except (TypeError, ValueError) as error:
        raise _Unusable(f"returned a message that is not JSON: {error}") from None


class _Unusable(Exception):
    """A function returned a value of another kind."""


def _values(returned: Any, count: int) -> list[Any]:
    if isinstance(returned, str | bytes | Mapping) or not hasattr(returned, "__len__"):
        raise _Unusable(f"returned {describe_value(returned)} for a group; return a list of {count} numbers")
    values = list(returned)
    if len(values) != count:
        raise _Unusable(f"returned {len(values)} values for {count} responses")
    return values
