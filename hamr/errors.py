"""Exceptions of the package. Every error can be pickled, so that it crosses process boundaries unchanged."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class HamrError(Exception):
    """Base class of all errors that hamr raises on purpose. `exit_code` is the exit code of the command line."""

    exit_code = 1


class BadInput(HamrError):
    """Invalid user input. The message is one line: location, bad value, remedy.

    >>> str(BadInput("data.train", "x.jsonl", "no such file; give an existing JSONL"))
    "data.train: 'x.jsonl': no such file; give an existing JSONL"
    """

    exit_code = 2

    def __init__(self, where: str, value: object, remedy: str) -> None:
        super().__init__(where, value, remedy)
        self.where, self.value, self.remedy = where, value, remedy

    def __str__(self) -> str:
        shown = repr(self.value)
        if len(shown) > 160:
            shown = shown[:157] + "..."
        return f"{self.where}: {shown}: {self.remedy}"


class ConfigError(BadInput):
    """A configuration key is unknown, has a bad value, or contradicts another."""


class DataError(BadInput):
    """A data file is missing or a line of it is malformed; `where` is `file:line: field`."""


class CapacityError(BadInput):
    """The cluster cannot hold what the configuration asks for."""


class RunFolderError(BadInput):
    """The run folder exists, is in use, or cannot be resumed."""


class Preempted(HamrError):
    """The run was stopped by a signal. It has no error and can be resumed."""

    exit_code = 0


class Interrupted(Preempted):
    """Ctrl-C ended the run. It can be resumed like any stopped run."""

    exit_code = 130


class EngineDied(HamrError):
    """An inference engine stopped responding. Its work has to be repeated on another one."""


class ScorerTimeout(HamrError):
    """A scorer did not answer before its deadline."""


class ScorerUnavailable(HamrError):
    """No replica of a scorer could accept the request."""


class VerdictUnparsable(HamrError):
    """A scorer answered, but its verdict could not be parsed."""


class TrainingDiverged(HamrError):
    """Too many optimiser steps in a row had a non-finite gradient norm."""


class UnreliableScorer(HamrError):
    """A scorer of the reward cannot distinguish right replies from wrong ones."""


class TooManyUnscored(HamrError):
    """Scorers were unavailable for too long: most responses of a batch have no reward to learn from."""


class MissingScore(HamrError, ValueError):
    """A score that the cascade needs is missing. It is never replaced by a number."""


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a hint for a mistyped name, to be followed by the remedy; "" if no known name is similar.

    >>> did_you_mean("trian", ["train", "sft"])
    "did you mean 'train'? "
    """
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"did you mean {near[0]!r}? " if near else ""


def first_failure(details: Iterable[str]) -> str:
    """Return the first detail that is not empty, as one printable line that continues a message; "" if there is none.

    >>> first_failure(["", "connection\\nrefused"])
    '; first failure: connection refused'
    """
    for detail in details:
        if shown := printable(detail):
            return f"; first failure: {shown}"
    return ""


def printable(text: str, most: int = 400) -> str:
    """Return a text of foreign origin as one line of at most `most` characters, without control characters."""
    return "".join(filter(str.isprintable, " ".join(text.split())))[:most]


def first_fault(error: ValidationError) -> str:
    """Return the place and the message of the first fault that pydantic found, without the value."""
    fault = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(map(str, fault["loc"]))
    message = str(fault["msg"]).removeprefix("Value error, ")
    return f"{place}: {message}" if place else message
