"""Parsing and common checks of the `key=value` options of data jobs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from hamr.errors import BadInput, DataError

Number = TypeVar("Number", int, float)


def options(args: Sequence[str], known: Sequence[str], others: Sequence[str] = ()) -> tuple[dict[str, str], list[str]]:
    """Return the job's own key=value options, and the arguments that start with one of `others` (for the
    configuration)."""
    own: dict[str, str] = {}
    rest = []
    for arg in args:
        key, equals, value = arg.partition("=")
        if key in known and equals:
            own[key] = value
        elif others and arg.startswith(tuple(others)):
            rest.append(arg)
        else:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}=...? " if near else ""
            raise BadInput("hamr data", arg, f"unknown option; {hint}there are: {', '.join(known)}")
    return own, rest


def number(own: Mapping[str, str], name: str, kind: type[Number], default: Number) -> Number:
    if name not in own:
        return default
    try:
        return kind(own[name])
    except ValueError as error:
        raise BadInput(name, own[name], "must be a number") from error


def one_of(own: Mapping[str, str], name: str, allowed: Sequence[str], default: str) -> str:
    value = own.get(name, default)
    if value not in allowed:
        raise BadInput(name, value, f"must be {' or '.join(allowed)}")
    return value


def output_folder(own: Mapping[str, str], names: Sequence[str]) -> Path:
    """Return the output folder. Raises BadInput if it contains a file of `names`, unless `overwrite=true`."""
    if not own.get("output"):
        raise BadInput("output", None, "missing; give output=<folder>")
    may_replace = one_of(own, "overwrite", ("true", "false"), "false") == "true"
    folder = Path(own["output"]).expanduser()
    no_file_above(folder)
    held = [name for name in names if (folder / name).exists()]
    if held and not may_replace:
        raise DataError("output", str(folder), f"already contains {held[0]}; give another folder or overwrite=true")
    return folder


def output_file(own: Mapping[str, str]) -> Path:
    """Return the output file. Raises BadInput if it exists, unless `overwrite=true`."""
    if not own.get("output"):
        raise BadInput("output", None, "missing; give output=<jsonl>")
    may_replace = one_of(own, "overwrite", ("true", "false"), "false") == "true"
    path = Path(own["output"]).expanduser()
    if path.is_dir():
        raise DataError("output", str(path), "is a folder; give a file")
    no_file_above(path.parent)
    if path.exists() and not may_replace:
        raise DataError("output", str(path), "already exists; give another file or overwrite=true")
    return path


def no_file_above(folder: Path) -> None:
    """Raise DataError where `folder` cannot be created because it, or one of its parents, is a file."""
    existing = next((path for path in (folder, *folder.parents) if path.exists()), None)
    if existing and not existing.is_dir():
        raise DataError("output", str(existing), "is a file; give a folder")


def require_files(own: Mapping[str, str], files: Mapping[str, str]) -> None:
    """Raise BadInput for the first of `files` (option -> content) that was not given."""
    for name, what in files.items():
        if not own.get(name):
            raise BadInput(name, None, f"missing; give {name}=<{what}>")
