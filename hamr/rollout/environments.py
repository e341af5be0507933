"""Environments of the user's own: classes in the shape of TRL's `environment_factory`.

    class Parcels:
        def reset(self, sample, seed):
            self.found = False
            return "Where is parcel 7?"

        def find(self, number: int) -> str:
            \"\"\"Look up a parcel.\"\"\"
            self.found = number == 7
            return "in Lyon"

        def get_reward(self):
            return float(self.found)

All public methods but `reset` and `get_reward` are tools of the policy.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_type_hints

from pydantic import TypeAdapter
from pydantic_core import ArgsKwargs, ValidationError, to_json

from hamr.data.actions import ResponseFormat, parse_action
from hamr.errors import first_fault
from hamr.security.functions import LoadedFunction, check_signature, describe_error, describe_value
from hamr.types import AskPolicy, Episode, EpisodeLimit, EpisodeOutcome, ServiceSample, ToolCall, Turn

RESERVED = ("reset", "get_reward")
"""Public methods that are not tools."""
_SECTION = re.compile(r"^\s*(Args|Arguments|Parameters|Returns|Raises|Yields|Examples?|Notes?):\s*$", re.MULTILINE)
_ARGUMENT = re.compile(r"^\s*(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


class ClassEpisode:
    """Episode function of an environment class. Every dialogue has an instance of its own.

    A tool call is executed, and its result is the next message. Any other response ends the dialogue. `get_reward` is
    then the reward of the whole dialogue, also where it reached a limit.
    """

    def __init__(self, function: LoadedFunction, format_of: Callable[[ServiceSample], ResponseFormat]) -> None:
        """Create one instance. Raises ConfigError for a class that cannot be used."""
        self._function, self._format_of = function, format_of
        check_signature(function.source, function.call, ())
        try:
            instance = function()
        except Exception as error:
            raise function.source.error(f"cannot be created: {describe_error(error, function.source)}") from None
        self._given = self._arguments_of_reset(instance)
        self._check(callable(getattr(instance, "get_reward", None)), "has no method get_reward(self); add one")
        wanted = ", ".join(_required_names(instance.get_reward))
        self._check(not wanted, f"get_reward({wanted}) cannot be called; it takes no arguments")
        tools = {name: self._tool(name, getattr(instance, name)) for name in _tool_names(function.call)}
        self._tools = tuple(schema for schema, _ in tools.values())
        self._arguments = {name: arguments for name, (_, arguments) in tools.items()}

    async def __call__(self, episode: Episode, ask: AskPolicy, **_: Any) -> Episode:
        environment = self._function()
        first = await _resolve(environment.reset(**{name: getattr(episode, name) for name in self._given}))
        if first is not None and not isinstance(first, str):
            raise TypeError(f"reset returned {describe_value(first)}; return a text or None")
        history = [*episode.sample.history, *([Turn(role="customer", content=first)] if first else [])]
        outcome: EpisodeOutcome = "ended"
        try:
            while True:
                point = replace(episode.sample, tools=self._tools, history=tuple(history))
                answer = await ask(point, score=False)
                action = parse_action(answer.text, self._format_of(point))
                if not isinstance(action, ToolCall):
                    break
                result = await self._use(environment, action)
                history += [Turn(role="agent", tool_call=action), Turn(role="tool", name=action.name, content=result)]
        except EpisodeLimit as limit:
            outcome = limit.outcome
        return episode.end(outcome=outcome, reward=await _resolve(environment.get_reward()))

    async def _use(self, environment: Any, call: ToolCall) -> str:
        """Return the tool's result as a text. A fault of the policy is an error that it can read."""
        if call.name not in self._arguments:
            return json.dumps({"error": f"no tool {call.name!r}; there is {', '.join(self._arguments) or 'none'}"})
        try:
            given, named = self._arguments[call.name].validate_python(ArgsKwargs((), dict(call.parameters)))
            result = await _resolve(getattr(environment, call.name)(*given, **named))
        except ValidationError as error:
            return json.dumps({"error": first_fault(error)})
        except ValueError as error:
            return json.dumps({"error": str(error)})
        return result if isinstance(result, str) else _as_json(call.name, result)

    def _arguments_of_reset(self, instance: Any) -> tuple[str, ...]:
        """Return the names that `reset` takes, of `sample` and `seed`."""
        self._check(callable(getattr(instance, "reset", None)), "has no method reset(self, sample, seed); add one")
        parameters, needed = inspect.signature(instance.reset).parameters, _required_names(instance.reset)
        possible = {"sample", "seed"}.issuperset(needed)
        self._check(possible, f"reset({', '.join(needed)}) cannot be called; it may take sample, seed or **kwargs")
        takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        return tuple(name for name in ("sample", "seed") if takes_all or name in parameters)

    def _tool(self, name: str, method: Any) -> tuple[dict[str, Any], TypeAdapter[Any]]:
        """Return the JSON schema of a tool, from its type hints and its docstring (Google style), and the adapter of
        its arguments."""
        description, arguments = _read_docstring(inspect.getdoc(method) or "")
        remedy = f"write one, or name it _{name} if it is no tool"
        self._check(bool(description), f"{name} has no docstring, which tells the policy what the tool does; {remedy}")
        bare = next((p.name for p in inspect.signature(method).parameters.values() if p.annotation is p.empty), None)
        self._check(bare is None, f"{name}({bare}) has no type hint; write {name}({bare}: str) or another type")
        try:
            arguments_adapter = _arguments_adapter(method)
            schema = arguments_adapter.json_schema()
        except Exception as error:  # type hints are the user's code
            reason = " ".join(str(error).split("\n")[0].split())
            raise self._function.source.error(f"{name} cannot be a tool: {reason}") from None
        named = "properties" in schema
        self._check(named, f"{name} cannot be a tool: it takes arguments by position; a policy names them")
        for parameter, spec in schema["properties"].items():
            spec.pop("title", None)
            if parameter in arguments:
                spec["description"] = arguments[parameter]
        return {"name": name, "description": description, "parameters": schema}, arguments_adapter

    def _check(self, holds: bool, remedy: str) -> None:
        if not holds:
            raise self._function.source.error(remedy)


def _tool_names(environment: Callable[..., Any]) -> list[str]:
    """Return the names of the public methods that are tools: also static methods, class methods and cached ones."""

    def is_method(member: object) -> bool:
        return callable(member) and inspect.isroutine(member) and not inspect.isbuiltin(member)

    public = inspect.getmembers(environment, is_method)
    return [name for name, _ in public if not name.startswith("_") and name not in RESERVED]


def _arguments_adapter(method: Callable[..., Any]) -> TypeAdapter[Any]:
    """Return the adapter from `ArgsKwargs` to (args, kwargs) for the method.

    The hints are resolved in the method's own module, where `from __future__ import annotations` leaves texts.
    """

    def arguments(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return args, kwargs

    function: Any = arguments
    function.__annotations__ = get_type_hints(method, include_extras=True)
    function.__signature__ = inspect.signature(method)
    return TypeAdapter(function)


def _as_json(name: str, result: Any) -> str:
    """Return the result of a tool as JSON: NumPy's values, dates and pydantic models too, NaN as null."""
    try:
        written = to_json(result, fallback=lambda value: value.tolist(), inf_nan_mode="null")
    except ValueError:
        shown = describe_value(result)
        raise TypeError(f"{name} returned {shown}, which JSON cannot write; return a text or plain values") from None
    return json.dumps(json.loads(written), ensure_ascii=False)


def _required_names(method: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters that a call has to give."""
    parameters = inspect.signature(method).parameters.values()
    return [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]


async def _resolve(result: Any) -> Any:
    """Return the result of a method that may be async."""
    return await result if inspect.isawaitable(result) else result


def _read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the description and those of the arguments.

    >>> _read_docstring("Look up a parcel.\\n\\nArgs:\\n    number: Its number,\\n        seven digits.")
    ('Look up a parcel.', {'number': 'Its number, seven digits.'})
    """
    parts = _SECTION.split(text)
    found: dict[str, str] = {}
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        name, indent = "", None
        for line in body.splitlines() if title in ("Args", "Arguments", "Parameters") else ():
            indent = len(line) - len(line.lstrip()) if indent is None and line.strip() else indent
            argument = (
                _ARGUMENT.match(line) if line[: indent or 0].isspace() and line[indent or 0 :][:1].strip() else None
            )
            if argument:
                name, found[argument[1]] = argument[1], argument[2]
            elif name and line.strip():
                found[name] += f" {line.strip()}"
    return " ".join(parts[0].split()), found
