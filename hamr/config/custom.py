"""Functions of the user's own: where they are, and which of them may run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from hamr.config.section import NonNegative, PositiveFloat, Section, SmallInt
from hamr.errors import ConfigError


def _function_path(path: str) -> str:
    source, _, name = path.rpartition(":")
    if not source or not name.isidentifier():
        raise ValueError(f"{path!r} names no function; write FILE.py:FUNCTION or MODULE:FUNCTION")
    return path


FunctionPath = Annotated[str, AfterValidator(_function_path)]
"""`file.py:function` or `module:function`."""


class CodeConfig(Section):
    """Code of the user's own. It comes from the user's hand only: a recorded path is not executed."""

    path: str
    """Place of the code."""
    _recorded: bool = PrivateAttr(default=False)

    @property
    def file(self) -> str | None:
        """File of the code, None if it is not a single one."""
        return None

    def as_recorded(self) -> Self:
        """Return a copy whose path is not executed, because it comes from a recorded configuration (a run folder's)."""
        copy = self.model_copy()
        copy._recorded = True
        return copy

    def refuse_recorded(self, key: str) -> None:
        """Raise ConfigError if the path must not be executed. `key` is that of the section."""
        if self._recorded:
            raise ConfigError(
                f"{key}.path",
                self.path,
                "a recorded configuration cannot name code; if the code is yours, repeat it on the command line: "
                + shlex.quote(f"{key}.path={self.path}"),
            )


class FunctionConfig(CodeConfig):
    """A function of the user's own."""

    path: FunctionPath
    """`file.py:function`, relative to the working folder, or `module:function`. Accepted on the command line and in
    files of your own config folder. A run folder's configuration cannot name code: repeat the path on the command
    line."""
    kwargs: dict[str, Any] = Field(default_factory=dict)
    """Further keyword arguments of the function."""
    sha256: str | None = None
    """Digest of the function's file. The run records it, and a file with another digest is refused."""

    @property
    def file(self) -> str | None:
        """File of the function, None for a module."""
        place = self.path.rpartition(":")[0]
        return place if place.endswith(".py") else None


def _command_line(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a command line ({error}); write it as in a shell") from None
    if not words:
        raise ValueError("the command line is empty; write e.g. env.command='python my_agent.py'")
    return text


class HarnessConfig(CodeConfig):
    """Agent harness of the user's own, which asks the policy over HTTP."""

    path: Annotated[str, AfterValidator(_command_line)]
    """Command line of a process that holds one dialogue, such as `python my_agent.py`; `env.command=...` is short for
    it. It runs without a shell in the working folder. Accepted where paths of functions are."""
    deadline_s: PositiveFloat = 600.0
    """Maximum duration of one dialogue. After it, the process is killed, and the dialogue is a failure."""
    processes: SmallInt = 16
    """Maximum number of dialogues at a time, each with its process."""
    host: str = "127.0.0.1"
    """Address of the policy endpoint. Another one than this machine's own is for harnesses in containers or on other
    machines. Each dialogue has a token of its own."""

    @model_validator(mode="before")
    @classmethod
    def _by_path(cls, given: Any) -> Any:
        return {"path": given} if isinstance(given, str) else given


class ImporterConfig(FunctionConfig):
    """A function that yields the training samples."""

    deadline_s: PositiveFloat = 600.0
    """Longest time of the function, in seconds, above 0."""
    _samples: Any = PrivateAttr(default=None)

    @property
    def samples(self) -> Any:
        """Samples of an earlier call, or the file of a run folder that holds them; None if there was no call. The
        function is then not called again."""
        return self._samples

    def as_called(self, samples: Any) -> ImporterConfig:
        copy = self.model_copy()
        copy._samples = samples
        return copy


class CustomRewardConfig(FunctionConfig):
    """A reward function of the user's own: `def politeness(sample, response) -> float | None`, which may be async."""

    weight: NonNegative = 1.0
    """Weight of the value in the total, at least 0. 0 disables the function."""
    batch: bool = False
    """Call the function once per group with two lists, samples and responses. It returns a list of numbers."""
    deadline_s: PositiveFloat = 10.0
    """Maximum duration of one call. After it, the process of the function is replaced and the outcome is a failure."""
    processes: SmallInt = 1
    """Number of processes that run the function. Each runs one call at a time, or 64 if the function is async."""


class EpisodeFunctionConfig(FunctionConfig):
    """A dialogue of the user's own, for each of the N dialogues of a prompt: `async def run(episode, ask) -> Episode`,
    or an environment class with `reset`, `get_reward` and its tools as methods. `kwargs` are then those of the
    class."""

    deadline_s: PositiveFloat = 600.0
    """Maximum duration of one dialogue. After it, the dialogue is a failure and has no reward."""
    _is_class: bool = PrivateAttr(default=False)

    @property
    def is_class(self) -> bool:
        """Return whether the path names an environment class. It is known once the function is loaded."""
        return self._is_class

    def as_class(self) -> EpisodeFunctionConfig:
        copy = self.model_copy()
        copy._is_class = True
        return copy


class CallbacksConfig(Section):
    """Functions that are called during a run, in order, in a thread of their own. They never stop or change the run."""

    on_step_end: FunctionConfig | None = None
    """`def f(stage, step, metrics)`: after every optimiser step of `sft` and `rl`, with its metrics. null: none."""
    on_evaluation_end: FunctionConfig | None = None
    """`def f(stage, step, metrics, records)`: after every evaluation, with the records of its responses. null: none."""

    @property
    def sections(self) -> dict[str, FunctionConfig]:
        return {name: section for name in type(self).model_fields if (section := getattr(self, name)) is not None}


ARGUMENTS: dict[str, tuple[str, ...]] = {
    "data.importer": (),
    "algorithm.loss": ("tokens",),
    "rollout.episode": ("episode", "ask"),
    "logging.callbacks.on_step_end": ("stage", "step", "metrics"),
    "logging.callbacks.on_evaluation_end": ("stage", "step", "metrics", "records"),
}
"""Section of a function -> what the function gets by position. Rewards are not among them."""


def names_function(override: str) -> bool:
    """Return whether a command line argument is the path of code. A resumed run needs it again."""
    section, end, _ = override.lstrip("+").partition(".path=")
    return bool(end) and (
        section in (*ARGUMENTS, "env.command") or re.fullmatch(r"rewards\.custom\.[^.=]+", section) is not None
    )


def function_arguments(functions: Mapping[str, CodeConfig]) -> list[str]:
    """Return the arguments that repeat the paths of these functions."""
    return [f"{key}.path={section.path}" for key, section in functions.items()]
