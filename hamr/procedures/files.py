"""Scenario files: search, parsing, and validation errors with line numbers."""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from hamr.config.resources import resource
from hamr.config.safe_yaml import line_of, load_yaml
from hamr.errors import BadInput, did_you_mean
from hamr.procedures.checks import faults
from hamr.procedures.graph import Scenario
from hamr.procedures.schema import ScenarioFile

Model = TypeVar("Model", bound=BaseModel)
# Ten times as fast if PyYAML was built with it, and equally safe.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def scenario_names() -> list[str]:
    """Return the names of the shipped scenarios."""
    return sorted(path.stem for path in resource("conf", "scenarios").glob("*.yaml"))


def load_scenario(name: str | Path) -> Scenario:
    """Load a shipped scenario by name, or a user's by path (contains a slash or ends in .yaml).

    BadInput names file and line: unknown name (with the nearest one) or file, invalid YAML, unknown key, invalid value,
    or parts that do not fit together (see `checks`).
    """
    return _shipped_scenario(str(name)) if not is_path(name) else _read(Path(name).expanduser())


def is_path(name: str | Path) -> bool:
    return isinstance(name, Path) or "/" in name or name.endswith((".yaml", ".yml"))


@lru_cache(maxsize=64)
def _shipped_scenario(name: str) -> Scenario:
    known = scenario_names()
    if name not in known:
        raise BadInput(
            "scenario", name, f"{did_you_mean(name, known)}known: {', '.join(known)}; or give the path of a file"
        )
    return _read(resource("conf", "scenarios") / f"{name}.yaml")


def _read(path: Path) -> Scenario:
    file, tree = read_checked(path, ScenarioFile, "scenario")
    fault = next(faults(file), None)
    if fault is not None:
        raise BadInput(place(path, tree, fault.where), fault.value, fault.why)
    return Scenario(file, path)


def read_checked(path: Path, model: type[Model], what: str) -> tuple[Model, yaml.Node]:
    """Return (validated content, YAML nodes for `place`). BadInput names the line of the error."""
    try:
        text = path.read_text(encoding="utf-8")
        raw = load_yaml(text, _SafeLoader)
        tree = yaml.compose(text, Loader=_SafeLoader)
    except OSError as error:
        raise BadInput(what, str(path), f"{(error.strerror or 'cannot be read').lower()}; give a file") from error
    except UnicodeDecodeError as error:
        raise BadInput(what, str(path), "is not UTF-8; save it as UTF-8") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        remedy = "is not YAML there; check the indentation and the aliases"
        raise BadInput(where, getattr(error, "problem", None), remedy) from error
    if not isinstance(tree, yaml.MappingNode) or not isinstance(raw, dict):
        raise BadInput(f"{path}:1", raw, f"{what}: must be a YAML mapping; start from a shipped one")
    try:
        _refuse_doubled(tree, path)
        return model.model_validate(raw), tree
    except ValidationError as error:
        raise _validation_error(error, model, tree, path) from error
    except RecursionError as error:
        raise BadInput(what, str(path), "a part of it contains itself; write it without aliases") from error


def _refuse_doubled(node: yaml.Node, path: Path) -> None:
    """Reject duplicate keys. YAML itself silently uses the last one."""
    children = [node]
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if key.value in seen:
                raise BadInput(
                    f"{path}:{line}", key.value, f"duplicate key, first on line {seen[key.value]}; remove one"
                )
            seen[str(key.value)] = line
        children = [value for _, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    else:
        return
    for child in children:
        _refuse_doubled(child, path)


def _validation_error(error: ValidationError, model: type[BaseModel], tree: yaml.Node, path: Path) -> BadInput:
    found = error.errors()
    # A mistyped key is also a missing one: report the mistyped one first.
    first = next((e for e in found if e["type"] == "extra_forbidden"), found[0])
    where = place(path, tree, first["loc"])
    if first["type"] == "extra_forbidden":
        key = str(first["loc"][-1])
        return BadInput(where, key, f"unknown key; {did_you_mean(key, _keys(model))}remove it or correct it")
    value = None if first["type"] == "missing" else first["input"]
    return BadInput(where, value, first["msg"].removeprefix("Value error, "))


def _keys(model: type[BaseModel]) -> list[str]:
    """Return every key of the model and of the other models in its module, which its file may contain."""
    home = vars(sys.modules[model.__module__]).values()
    models = [m for m in home if isinstance(m, type) and issubclass(m, BaseModel)]
    return [field.alias or name for each in models for name, field in each.model_fields.items()]


def place(path: Path, tree: yaml.Node, where: tuple[Any, ...]) -> str:
    """Return `file:line: the.keys`, with the line of the deepest of these keys that is in the file."""
    return f"{path}:{line_of(tree, where)}: {'.'.join(map(str, where))}"
