"""The user's own functions: loading, checking and calling one. Runs in a process of its own.

    def politeness(sample, response) -> float | None        # or async def
    def novelty(samples, responses) -> list[float]          # `batch: true`: the responses of one group
    def reply(messages, tools) -> str | dict                # an agent that `hamr evaluate` tests

Whatever is not a finite number, or for an agent not a message, is a typed failure with the name of the function, never
a reward of 0.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import importlib.util
import inspect
import json
import math
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from hamr.errors import ConfigError
from hamr.types import Failure, FunctionFailed, FunctionTimeout, Scored, ServiceSample

if TYPE_CHECKING:
    from hamr.config.custom import CustomRewardConfig

FunctionOutcome = Scored | Failure
T = TypeVar("T")
SHOWN = 200
"""Maximum length of a user's value or message in a failure."""
MODULE = "user_reward"
"""Name of the module that a file is executed as. It must not hide an installed module."""


@dataclass(frozen=True, kw_only=True)
class FunctionSource:
    """Everything that a process needs to run a function. `file` (absolute) and `text` are None for a module."""

    name: str
    path: str
    deadline_s: float
    file: str | None = None
    text: str | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    batch: bool = False
    sha256: str | None = None
    agent: bool = False
    """True for an agent; `name` is then the option that names the path."""

    @property
    def place(self) -> str:
        """The file or the module."""
        return self.path.rpartition(":")[0]

    @property
    def function(self) -> str:
        return self.path.rpartition(":")[2]

    def error(self, remedy: str) -> ConfigError:
        return ConfigError(self.name if self.agent else f"rewards.custom.{self.name}.path", self.path, remedy)

    def failure(self, what: str) -> FunctionFailed:
        return FunctionFailed(detail=f"{self.name} ({self.path}) {what}")

    def timeout(self) -> FunctionTimeout:
        return FunctionTimeout(detail=f"{self.name} ({self.path}) did not return within {self.deadline_s:g} s")


def read_source(name: str, config: CustomRewardConfig) -> FunctionSource:
    """Read the file of a function, so that the text can be sent to another machine. Nothing is executed.

    Raises:
        ConfigError: The file is missing or unreadable, or the path may not be executed.
    """
    source = FunctionSource(
        name=name,
        path=config.path,
        deadline_s=config.deadline_s,
        kwargs=config.kwargs,
        batch=config.batch,
        sha256=config.sha256,
    )
    config.refuse_recorded(name)
    return with_text(source)


def with_text(source: FunctionSource) -> FunctionSource:
    """Return the source with the text of its file; unchanged for a module. Raises ConfigError."""
    if not source.place.endswith(".py"):
        return source
    file = Path(source.place).expanduser().resolve()
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise source.error(f"no such file in {file.parent}; give FILE.py:FUNCTION") from None
    except (OSError, UnicodeDecodeError) as error:
        raise source.error(f"cannot be read ({error})") from None
    return replace(source, file=str(file), text=text)


@dataclass(frozen=True, kw_only=True)
class UserFunction:
    """A loaded function. `sha256` is the digest of its file, None if a module has no file."""

    source: FunctionSource
    call: Callable[..., Any]
    sha256: str | None

    @property
    def is_async(self) -> bool:
        """True if several calls may run concurrently."""
        return inspect.iscoroutinefunction(self.call) or inspect.iscoroutinefunction(type(self.call).__call__)

    async def answer(self, *request: Any) -> dict[str, Any]:
        """Return the reply to a request, as JSON."""
        raise NotImplementedError

    async def run(self, *given: Any, convert: Callable[[Any], T]) -> T | Failure:
        """Call the function and convert its value. `convert` may raise _Unusable.

        The deadline ends an async function only. The caller has to end the process of one that does not return.
        """
        source = self.source
        limit = asyncio.timeout(source.deadline_s)
        try:
            async with limit:
                value = self.call(*given, **source.kwargs)
                if inspect.isawaitable(value):
                    value = await value
            return convert(value)
        except _Unusable as error:
            return source.failure(str(error))
        except (Exception, SystemExit) as error:
            if limit.expired():
                return source.timeout()
            return source.failure(f"raised {describe_error(error, source)}")


@dataclass(frozen=True, kw_only=True)
class RewardFunction(UserFunction):
    """A loaded reward function."""

    async def answer(self, *request: Any) -> dict[str, Any]:
        return {"outcomes": [_as_reply(outcome) for outcome in await self.score(*request)]}

    async def score(self, sample: ServiceSample, responses: Sequence[str]) -> tuple[FunctionOutcome, ...]:
        """Return the outcome of each response. Without `batch` there is one response."""
        source, count = self.source, len(responses)
        given = ([sample] * count, list(responses)) if source.batch else (sample, *responses)
        values = await self.run(*given, convert=lambda value: _values(value, count) if source.batch else [value])
        if isinstance(values, Failure):
            return (values,) * count
        return tuple(_outcome(source, value) for value in values)


@dataclass(frozen=True, kw_only=True)
class AgentFunction(UserFunction):
    """A loaded agent: `reply(messages, tools)` returns its text, or a message {"content", "tool_calls"}."""

    async def answer(self, *request: Any) -> dict[str, Any]:
        begun = time.monotonic()
        message = await self.run(*request, convert=_message)
        if isinstance(message, Failure):
            return _as_reply(message)
        return {"message": message, "seconds": time.monotonic() - begun}


def _as_reply(outcome: FunctionOutcome) -> dict[str, Any]:
    if isinstance(outcome, Scored):
        return {"value": outcome.value}
    return {"kind": outcome.kind, "detail": outcome.detail}


def _message(value: Any) -> dict[str, Any]:
    """Return an agent's message. Clients' own objects (`model_dump`) are accepted."""
    dumped = value.model_dump() if hasattr(value, "model_dump") else value
    found = {"content": dumped} if isinstance(dumped, str) else dumped
    if not isinstance(found, dict) or not (isinstance(found.get("content"), str) or found.get("tool_calls")):
        shown = describe_value(value)
        raise _Unusable(f"returned {shown}; return the text of the reply, or a message with content or tool_calls")
    try:
        return dict(json.loads(json.dumps({key: found.get(key) for key in ("content", "tool_calls")})))
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


def _outcome(source: FunctionSource, value: Any) -> FunctionOutcome:
    # bool_ is NumPy's name before version 2. A truth value is more often a mistake than a reward.
    number = hasattr(value, "__float__") and type(value).__name__ not in ("bool", "bool_")
    try:
        as_float = float(value) if number else math.nan
    except Exception:
        as_float = math.nan
    if math.isfinite(as_float):
        return Scored(value=as_float)
    return source.failure(f"returned {describe_value(value)}; return a finite number")


def describe_value(value: Any) -> str:
    """Return a value of the user's in one line, with its type."""
    try:
        text = " ".join(repr(value).split())
    except Exception:
        text = "a value without a repr"
    return f"{text[:SHOWN]} ({type(value).__name__})" if value is not None else "None"


def describe_error(error: BaseException, source: FunctionSource) -> str:
    """Return an exception in one line, with the line of the user's file where it was raised."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:SHOWN]
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == source.file]
    return f"{text} ({source.place}, line {lines[-1]})" if lines else text


def load_function(source: FunctionSource) -> UserFunction:
    """Execute the file, or import the module, and return its function. Call it in a process of its own.

    Raises:
        ConfigError: There is no such module or function, its digest differs, or it cannot be called as needed.
    """
    content = source.text.encode() if source.text is not None else _module_content(source)
    sha256 = hashlib.sha256(content).hexdigest() if content is not None else None
    if source.sha256 not in (None, sha256):
        raise source.error(
            f"has changed since the run began (SHA-256 {str(sha256)[:12]}, recorded {str(source.sha256)[:12]}); "
            "restore the file, or start a new run"
        )
    try:
        module = _execute(source) if source.text is not None else importlib.import_module(source.place)
    except (Exception, SystemExit) as error:
        raise source.error(f"cannot be imported: {describe_error(error, source)}") from None
    function = getattr(module, source.function, None)
    if function is None:
        known = sorted(n for n, f in vars(module).items() if inspect.isfunction(f) and f.__module__ == module.__name__)
        raise source.error(f"no such function; {source.place} defines {', '.join(known) or 'none'}")
    if not callable(function):
        raise source.error(f"is not a function but {describe_value(function)}")
    _check_signature(source, function)
    kind = AgentFunction if source.agent else RewardFunction
    return kind(source=source, call=function, sha256=sha256)


def _module_content(source: FunctionSource) -> bytes | None:
    try:
        spec = importlib.util.find_spec(source.place)
    except (ImportError, ValueError, AttributeError) as error:
        raise source.error(f"cannot be imported: {describe_error(error, source)}") from None
    if spec is None:
        raise source.error("no such module; give MODULE:FUNCTION of an installed module, or FILE.py:FUNCTION")
    return Path(spec.origin).read_bytes() if spec.has_location and spec.origin else None


def _execute(source: FunctionSource) -> ModuleType:
    """Execute the text of a file as a module. It can import modules of its own folder, like a script."""
    assert source.text is not None and source.file is not None, "the caller checks this"
    module = ModuleType(MODULE)
    module.__file__ = source.file
    sys.modules[MODULE] = module
    sys.path.insert(0, str(Path(source.file).parent))
    exec(compile(source.text, source.file, "exec"), vars(module))
    return module


def _check_signature(source: FunctionSource, function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some functions of extension modules have none
    try:
        signature.bind(None, None, **source.kwargs)
    except TypeError as error:
        positional = "messages, tools" if source.agent else "samples, responses" if source.batch else "sample, response"
        named = "".join(f", {key}=..." for key in source.kwargs)
        raise source.error(f"cannot be called as {source.function}({positional}{named}): {error}") from None
