"""YAML files of users, validated as a model; every fault names the line of its key. The config.yaml of a run folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from hamr.config.explain import requirement, yaml_error
from hamr.config.safe_yaml import line_of, load_yaml
from hamr.errors import ConfigError, did_you_mean

Model = TypeVar("Model", bound=BaseModel)
# Ten times as fast if PyYAML was built with it, and equally safe.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_checked(path: Path, model: type[Model], what: str) -> tuple[Model, yaml.Node]:
    """Return (validated content, YAML nodes for `place`). ConfigError names the line of the error."""
    try:
        text = path.read_text(encoding="utf-8")
        raw = load_yaml(text, _LOADER)
        tree = yaml.compose(text, Loader=_LOADER)
    except OSError as error:
        raise ConfigError(what, str(path), f"{(error.strerror or 'cannot be read').lower()}; give a file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(what, str(path), "is not UTF-8; save it as UTF-8") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        remedy = "is not YAML there; check the indentation and the aliases"
        raise ConfigError(where, getattr(error, "problem", None), remedy) from error
    if not isinstance(tree, yaml.MappingNode) or not isinstance(raw, dict):
        raise ConfigError(f"{path}:1", raw, f"{what}: must be a YAML mapping; start from a shipped one")
    try:
        _refuse_doubled(tree, path)
        return model.model_validate(raw), tree
    except ValidationError as error:
        raise _validation_error(error, model, tree, path) from error
    except RecursionError as error:
        raise ConfigError(what, str(path), "a part of it contains itself; write it without aliases") from error


def read_config(path: Path) -> dict[str, Any]:
    """Return the raw values of a run folder's config.yaml. Raises ConfigError if it cannot be read or is damaged."""
    remedy = "give a run folder's config.yaml"
    try:
        raw = load_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError("config", str(path), f"cannot be read ({error.strerror}); {remedy}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise yaml_error(error, str(path)) from None
    if not isinstance(raw, dict):
        raise ConfigError("config", str(path), f"contains no configuration; {remedy}")
    return raw


def _refuse_doubled(node: yaml.Node, path: Path) -> None:
    """Reject duplicate keys. YAML itself silently uses the last one."""
    children = [node]
    if isinstance(node, yaml.MappingNode):
        seen: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if key.value in seen:
                raise ConfigError(
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


def _validation_error(error: ValidationError, model: type[BaseModel], tree: yaml.Node, path: Path) -> ConfigError:
    found = error.errors()
    # A mistyped key is also a missing one: report the mistyped one first.
    first = next((e for e in found if e["type"] == "extra_forbidden"), found[0])
    where = place(path, tree, first["loc"])
    if first["type"] == "extra_forbidden":
        key = str(first["loc"][-1])
        known = set(_keys(model))
        if key in known:
            return ConfigError(where, key, "is a key of another section; move or remove it")
        return ConfigError(where, key, f"unknown key; {did_you_mean(key, known)}remove it or correct it")
    if first["type"] == "missing":
        return ConfigError(where, None, "missing; add it")
    quoted = first["type"] == "string_type" and isinstance(first["input"], int | float)
    return ConfigError(where, first["input"], requirement(first) + ("; put quotes around it" if quoted else ""))


def _keys(model: type[BaseModel]) -> list[str]:
    """Return every key of the model and of the other models in its module, which its file may contain."""
    home = vars(sys.modules[model.__module__]).values()
    models = [m for m in home if isinstance(m, type) and issubclass(m, BaseModel)]
    return [field.alias or name for each in models for name, field in each.model_fields.items()]


def place(path: Path, tree: yaml.Node, where: tuple[Any, ...]) -> str:
    """Return `file:line: the.keys`, with the line of the deepest of these keys that is in the file.

    pydantic names a wrong key of a mapping by the key and `[key]`. Names of a union's parts are in brackets too.
    """
    keys = [part for part in map(str, where) if not part.startswith("[")]
    return f"{path}:{line_of(tree, keys)}: {'.'.join(keys)}"
