"""Files of public corpora: JSON, and rows that name the policies and tools of a second file."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from hamr.data.columns import check_column
from hamr.data.samples import check_tool, read_rows
from hamr.data.shapes import Shape, check_shape
from hamr.errors import DataError


def json_file(path: Path, option: str) -> Any:
    """Return the content of a JSON file, which may be compressed (.gz). Raise DataError."""
    try:
        raw = path.read_bytes()
        return json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)
    except (OSError, EOFError, zlib.error) as error:
        reason = (getattr(error, "strerror", None) or str(error) or "unreadable").lower()
        raise DataError(option, str(path), f"{reason}; give a JSON file") from error
    except (ValueError, RecursionError) as error:
        raise DataError(option, str(path), f"bad JSON ({error})") from error


def is_release(path: Path, keys: Sequence[str], policies: Path | None) -> bool:
    """Return True for a folder, a compressed file, a JSON array, or a JSON object that begins with one of the keys: a
    corpus as it is published. Other files have one JSON object per line.

    Raise DataError for a file that cannot be read, and for policies in addition to a published corpus.
    """
    found = path.is_dir() or path.suffix == ".gz" or _begins_with(path, keys)
    if found and policies is not None:
        raise DataError("policies", str(policies), f"{path.name} is a corpus as it is published; remove the option")
    return found


def _begins_with(path: Path, keys: Sequence[str]) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(256).decode("utf-8", "replace").lstrip("\ufeff \r\n\t")
    except OSError as error:
        reason = (error.strerror or "unreadable").lower()
        raise DataError("input", str(path), f"{reason}; give a file or folder") from error
    return head.startswith("[") or re.match(rf'\{{\s*"(?:{"|".join(keys)})"', head) is not None


# --- policies and tools ------------------------------------------------------------------------


class Policy(Shape):
    text: str | None = None


class _ListedPolicies(Shape):
    policies: dict[str, Policy]
    tools: dict[str, list[Any]]


def read_policies(path: Path | None, shape: Any) -> dict[str, Any]:
    """Return the JSON object of the option `policies`, which has the shape. Raise DataError."""
    if path is None:
        raise DataError("policies", None, "missing; give policies=FILE.json, or the corpus as it is published")
    content: dict[str, Any] = json_file(path, "policies")
    check_shape(shape, content, str(path))
    return content


def policy_texts(known: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of each policy that has one."""
    return {ref: policy["text"] for ref, policy in known["policies"].items() if policy.get("text")}


def read_listed_policies(path: Path | None) -> dict[str, dict[str, Any]]:
    """Return {"policies": {ref: text}, "tools": {ref: tools}} of the option `policies`. Raise DataError."""
    known = read_policies(path, _ListedPolicies)
    for ref, tools in known["tools"].items():
        for i, tool in enumerate(tools):
            check_tool(tool, f"{path}: tools.{ref}[{i}]")
    return {"policies": policy_texts(known), "tools": known["tools"]}


# --- decision points and whole conversations ----------------------------------------------------


class Referring(Shape):
    id: str
    policy_ref: str
    tools_ref: list[str]


class _Candidate(Shape):
    content: str


class ReferringPoint(Referring):
    ticket: dict[str, Any]
    history: list[Any]
    gold: dict[str, Any]
    reference_candidates: list[_Candidate] = Field(default_factory=list)
    privileged: dict[str, Any] = Field(default_factory=dict)
    source: dict[str, Any] = Field(default_factory=dict)


class ReferringConversation(Referring):
    messages: list[Any]
    reward: float

    @model_validator(mode="before")
    @classmethod
    def _no_task(cls, row: Any) -> Any:
        if isinstance(row, dict) and "messages" not in row and "user_scenario" in row:
            raise ValueError("is a task and not a conversation; give the file of trajectories")
        return row


def referring_rows(
    input: Path,
    shape: type[Referring],
    known: Mapping[str, Collection[str]],
    policies: Path | None,
    group: str | None = None,
) -> list[tuple[str, dict[str, Any]]]:
    """Return (`file:line`, row) of every row, in order. `known`: the names of the policies and of the tools.

    Raises DataError for a row that does not have the shape or names something unknown, and for an unknown group.
    """
    rows = [(f"{input}:{number}", row) for number, row in read_rows(input)]
    for where, row in rows:
        check_shape(shape, row, where)
        for field, section in (("policy_ref", "policies"), ("tools_ref", "tools")):
            for ref in row[field] if isinstance(row[field], list) else [row[field]]:
                if ref not in known[section]:
                    raise DataError(f"{where}: {field}", ref, f"not in {policies}")
    check_column("group", group, (row for _, row in rows), input.name)
    return rows
