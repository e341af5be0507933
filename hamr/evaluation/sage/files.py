"""Scenario files: finding, reading and refusing them, with the line that is wrong."""

from __future__ import annotations

import difflib
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from hamr.config.resources import resource
from hamr.errors import BadInput
from hamr.evaluation.sage import schema
from hamr.evaluation.sage.checks import faults
from hamr.evaluation.sage.graph import Scenario
from hamr.evaluation.sage.rules import nearest
from hamr.evaluation.sage.schema import ScenarioFile


def scenario_names() -> list[str]:
    """The scenarios that ship with hamr."""
    return sorted(path.stem for path in resource("conf", "scenarios").glob("*.yaml"))


def load_scenario(name: str | Path) -> Scenario:
    """A shipped scenario by its name, or the user's own by its path (anything with a slash or that ends in .yaml).

    Raises BadInput that names file and line: no such name (the nearest is named) or file, bad YAML, an unknown key, a
    value that cannot be, and parts that do not fit together (see `checks`).
    """
    return _shipped(str(name)) if not is_path(name) else _read(Path(name).expanduser())


def is_path(name: str | Path) -> bool:
    return isinstance(name, Path) or "/" in name or name.endswith((".yaml", ".yml"))


@lru_cache(maxsize=64)
def _shipped(name: str) -> Scenario:
    known = scenario_names()
    if name not in known:
        raise BadInput("scenario", name, f"{nearest(name, known)}known: {', '.join(known)}; or give the path of a file")
    return _read(resource("conf", "scenarios") / f"{name}.yaml")


def _read(path: Path) -> Scenario:
    try:
        text = path.read_text(encoding="utf-8")
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        raw = yaml.safe_load(text)
    except OSError as error:
        raise BadInput("scenario", str(path), f"{(error.strerror or 'cannot be read').lower()}; give a file") from error
    except UnicodeDecodeError as error:
        raise BadInput("scenario", str(path), "is not UTF-8; save it as UTF-8") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise BadInput(where, getattr(error, "problem", None), "is not YAML there; check the indentation") from error
    if not isinstance(tree, yaml.MappingNode) or not isinstance(raw, dict):
        raise BadInput(f"{path}:1", raw, "a scenario is a YAML mapping; start from a shipped one")
    try:
        _refuse_doubled(tree, path)
        file = ScenarioFile.model_validate(raw)
    except ValidationError as error:
        raise _malformed(error, tree, path) from error
    except RecursionError as error:
        raise BadInput("scenario", str(path), "a part of it holds itself; write it without aliases") from error
    fault = next(faults(file), None)
    if fault is not None:
        raise BadInput(_place(path, tree, fault.where), fault.value, fault.why)
    return Scenario(file)


def _refuse_doubled(node: yaml.Node, path: Path) -> None:
    """YAML itself takes the last of two equal keys without a word."""
    children = [node]
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if key.value in seen:
                raise BadInput(
                    f"{path}:{line}", key.value, f"this key stands on line {seen[key.value]} already; remove one"
                )
            seen[str(key.value)] = line
        children = [value for _, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    else:
        return
    for child in children:
        _refuse_doubled(child, path)


def _malformed(error: ValidationError, tree: yaml.Node, path: Path) -> BadInput:
    found = error.errors()
    # A mistyped key is also a missing one: say the first.
    first = next((e for e in found if e["type"] == "extra_forbidden"), found[0])
    place = _place(path, tree, first["loc"])
    if first["type"] == "extra_forbidden":
        key = str(first["loc"][-1])
        near = difflib.get_close_matches(key, _keys(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return BadInput(place, key, f"unknown key; {hint}remove it or correct it")
    value = None if first["type"] == "missing" else first["input"]
    return BadInput(place, value, first["msg"].removeprefix("Value error, "))


def _keys() -> list[str]:
    """Every key that some section of a scenario file has."""
    models = [m for m in vars(schema).values() if isinstance(m, type) and issubclass(m, BaseModel)]
    return [field.alias or name for model in models for name, field in model.model_fields.items()]


def _place(path: Path, tree: yaml.Node, where: tuple[Any, ...]) -> str:
    """`file:line: the.keys` of the deepest of these keys that stands in the file."""
    node, line = tree, 1
    for part in where:
        found = _child(node, part)
        if found is not None:
            node, line = found
    return f"{path}:{line}: {'.'.join(map(str, where))}"


def _child(node: yaml.Node, part: str | int) -> tuple[yaml.Node, int] | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part].start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if str(key.value).lower() == str(part).lower():
                return value, key.start_mark.line + 1
    return None
