"""Convert errors of pydantic and YAML into one line that names the correction."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from hamr.config.safe_yaml import steps_into
from hamr.errors import ConfigError


class UnknownKey(ConfigError):
    """A key that the schema does not have."""

    def __str__(self) -> str:
        return f"{self.where}: unknown key; {self.remedy}"


class Contradiction(ConfigError):
    """Two contradictory values. The message has both and the remedy."""

    def __str__(self) -> str:
        return f"{self.where}: {self.remedy}" if self.where else self.remedy


def known_keys(model: type[BaseModel], raw: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield every dotted key of `model`, sections included. Names of pools are taken from `raw`."""
    for name, info in model.model_fields.items():
        key = f"{prefix}{name}"
        yield key
        section, is_mapping = section_of(info.annotation)
        if section is None:
            continue
        inner = raw.get(name)
        inner = inner if isinstance(inner, Mapping) else {}
        if is_mapping:
            for entry, value in inner.items():
                yield f"{key}.{entry}"
                yield from known_keys(section, value if isinstance(value, Mapping) else {}, f"{key}.{entry}.")
        else:
            yield from known_keys(section, inner, f"{key}.")


def section_of(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """Return (section class in an annotation, True if it is a mapping of sections)."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return next((found for found in map(section_of, args) if found[0]), (None, False))
    if origin is dict and isinstance(args[1], type) and issubclass(args[1], BaseModel):
        return args[1], True
    return None, False


def explain(
    error: ValidationError,
    raw: Mapping[str, Any],
    model: type[BaseModel],
    origin: Callable[[Sequence[str], str], str | None],
) -> ConfigError:
    """Return the first error in one line, with the number of further errors at its end. `origin` names the place that
    set a key."""
    details = error.errors(include_url=False)
    first, more = details[0], len(details) - 1
    path = tuple(str(part) for part in first["loc"] if part != "[key]")
    value = first["input"]
    kind = first["type"]
    if kind == "extra_forbidden":
        path, value = _leaf(path, value)
    text = _one_line(str(first["ctx"]["error"])) if kind == "value_error" else ""
    place = origin(path, text)
    tail = (f" ({place})" if place else "") + (f" (and {more} more)" if more else "")
    where = ".".join(path)
    if kind == "extra_forbidden":
        return UnknownKey(where, value, did_you_mean(where, list(known_keys(model, raw))) + tail)
    if kind == "value_error":
        return Contradiction(where, None, text + tail)
    if kind == "missing":
        near = _near_entry(path[:-1], raw, model)
        hint = f"did you mean {near}? Otherwise " if near else ""
        return Contradiction(where, None, f"required, but not set; {hint}set {where}=..." + tail)
    quoted = f"; quote it: \"'{value}'\"" if kind == "string_type" and isinstance(value, int | float) else ""
    return ConfigError(where, value, requirement(first) + quoted + tail)


def _leaf(path: tuple[str, ...], value: Any) -> tuple[tuple[str, ...], Any]:
    """Descend into single-key sections: `train: {learning_rate: 1}` refers to `train.learning_rate`."""
    while isinstance(value, Mapping) and len(value) == 1:
        key, value = next(iter(value.items()))
        path = (*path, str(key))
    return path, value


def _near_entry(path: tuple[str, ...], raw: Mapping[str, Any], model: type[BaseModel]) -> str | None:
    """Return the key of the other entry of a mapping, such as `pools`, whose name is nearest to that of `path`."""
    if not path or ".".join(path) in known_keys(model, {}):
        return None
    *above, name = path
    entries: Any = raw
    for part in above:
        entries = entries.get(part) if isinstance(entries, Mapping) else None
    others = [str(entry) for entry in entries if entry != name] if isinstance(entries, Mapping) else []
    near = difflib.get_close_matches(name, others, n=1)
    return ".".join((*above, near[0])) if near else None


def did_you_mean(where: str, known: Sequence[str]) -> str:
    """Return a hint at the known key that is nearest to an unknown one, or to its section if that is unknown too."""
    section, _, leaf = where.rpartition(".")
    siblings = [k for k in known if k.rpartition(".")[0] == section]
    by_leaf = {k.rpartition(".")[2]: k for k in siblings}
    initials = [name for name in by_leaf if "_" in name and "".join(word[:1] for word in name.split("_")) == leaf]
    same_leaf = [k for k in known if k.rpartition(".")[2] == leaf]
    # A top-level word that is the end of a key, such as `seed`, is that key unless it resembles a section closely.
    cutoff = 0.8 if same_leaf and not section else 0.6
    close = initials or difflib.get_close_matches(leaf, by_leaf, n=1, cutoff=cutoff)
    if close:
        return f"did you mean {by_leaf[close[0]]}?"
    whole = difflib.get_close_matches(where, known, n=1, cutoff=0.8)
    elsewhere = difflib.get_close_matches(leaf, [k.rpartition(".")[2] for k in known], n=1, cutoff=0.75)
    anywhere = [k for k in known if elsewhere and k.rpartition(".")[2] == elsewhere[0]]
    for found in (whole, sorted(same_leaf, key=_depth), sorted(anywhere, key=_depth)):
        if found:
            return f"did you mean {found[0]}?"
    if siblings:
        return f"{section or 'the top level'} has {', '.join(by_leaf)}"
    return did_you_mean(section, known)


def _depth(key: str) -> tuple[int, int]:
    return key.count("."), len(key)


def requirement(detail: ErrorDetails) -> str:
    """Return the requirement that a faulty value violates."""
    if detail["type"] in ("model_type", "dict_type", "model_attributes_type"):
        return "must be a section of keys, not a single value"
    if detail["type"] in ("tuple_type", "list_type"):
        return f"must be a list; write [{detail['input']}]" if isinstance(detail["input"], str) else "must be a list"
    if detail["type"] == "too_short":
        return f"must have {detail['ctx']['min_length']} or more entries"
    text = _one_line(detail["msg"]).removeprefix("Value error, ")
    return re.sub(r"^(Input|String) should", "must", text)


def _one_line(text: str) -> str:
    """Return the text in one line, with credentials in URLs masked."""
    return re.sub(r"//[^/@\s]+@", "//***@", " ".join(text.split()))


class Origin:
    """Finds the file and line that set a key, among the chosen files."""

    def __init__(
        self, roots: Sequence[Path] = (), choices: Mapping[str, str | None] | None = None, typed: Sequence[str] = ()
    ) -> None:
        """`typed` holds the keys set on the command line."""
        self._typed = tuple(typed)
        self._roots = roots
        self._files: list[tuple[str, Path]] = []
        # An experiment is composed last and overrides the others.
        for group, option in sorted((choices or {}).items(), key=lambda choice: choice[0] == "experiment"):
            file = next((r / group / f"{option}.yaml" for r in roots if (r / group / f"{option}.yaml").is_file()), None)
            if file:
                self._files.append((group, file))

    @property
    def files(self) -> list[str]:
        """Return the chosen files in the order of composition. A later one overrides an earlier one."""
        return [self._shorten(str(file)) for _, file in self._files]

    def describe(self, path: Sequence[str]) -> str:
        """Return `command line`, `file:line` or `default`. hamr's own files are named from `conf/`."""
        return "command line" if self._is_typed(path) else self._shorten(self(path) or "default")

    def _shorten(self, place: str) -> str:
        return place.replace(f"{self._roots[-1]}/", "conf/", 1) if self._roots else place

    def _is_typed(self, path: Sequence[str]) -> bool:
        key = ".".join(path)
        return any(key == t or key.startswith(f"{t}.") for t in self._typed)

    def _names_typed(self, path: Sequence[str], message: str) -> bool:
        """Return whether a message about a section names a key inside it that is set on the command line."""
        section, named = ".".join(path) + ".", set(re.findall(r"\w+(?:\.\w+)*", message))
        for key in (typed for typed in self._typed if typed.startswith(section)):
            inside = key.removeprefix(section)
            parent = inside.rpartition(".")[0]  # such as custom.NAME of custom.NAME.path
            if named & {key, inside, *([parent, section + parent] if "." in parent else [])}:
                return True
        return False

    def __call__(self, path: Sequence[str], message: str = "") -> str | None:
        """Return `file:line`, or None if no file has the key (the command line, a default).

        A section is in a file, but the key inside it that `message` names may be from the command line. The place is
        then `command line`.
        """
        if self._is_typed(path):
            return None
        if path and self._names_typed(path, message):
            return "command line"
        for group, file in reversed(self._files):
            text = file.read_text(encoding="utf-8")
            inside = list(path)
            if not text.lstrip().startswith("# @package _global_"):
                if inside[:1] != [group]:
                    continue
                inside = inside[1:]
            found = list(steps_into(yaml.compose(text, Loader=yaml.SafeLoader), inside))
            if inside and len(found) == len(inside):
                return f"{file}:{found[-1][1]}"
        return None


def yaml_error(error: yaml.YAMLError | UnicodeDecodeError, file: str | None = None) -> ConfigError:
    """Return the error of unreadable YAML, with `file:line` if it has a line."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return Contradiction(file or "YAML", None, f"not valid YAML: {_one_line(str(error))}")
    mark = error.problem_mark or error.context_mark
    where = file or (mark.name if mark else "YAML")
    if mark:
        where = f"{where}:{mark.line + 1}"
    return Contradiction(where, None, f"not valid YAML: {_one_line(error.problem or str(error))}")
