"""Reference of the whole configuration, from the schema and its docstrings."""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from hamr.config.explain import section_of
from hamr.config.schema import Config


@dataclass(frozen=True, kw_only=True)
class KeyEntry:
    """Entry of one key. `default` is written as in YAML, "" if the key is required."""

    key: str
    type: str
    default: str
    meaning: str


def entries() -> Iterator[KeyEntry]:
    """Yield the entry of every key of the configuration, sections without a meaning of their own excepted."""
    for name, info in Config.model_fields.items():
        model, named = section_of(info.annotation)
        assert model is not None, "every field of the whole configuration is a section"
        yield from _entries(model, f"{name}.<name>" if named else name)


def _about(model: type[BaseModel]) -> str:
    """Return the section's own docstring, without those that it would inherit."""
    return vars(model).get("__doc__") or ""


def _entries(model: type[BaseModel], prefix: str) -> Iterator[KeyEntry]:
    for name, info in model.model_fields.items():
        key, (section, named) = f"{prefix}.{name}", section_of(info.annotation)
        text = info.description or (_about(section) if section else "")
        meaning = " ".join(text.split())
        if section is None or meaning or _default(info) == "null":
            yield KeyEntry(key=key, type=_type(info.annotation), default=_default(info), meaning=meaning)
        if section is not None:
            yield from _entries(section, f"{key}.<name>" if named else key)


def _default(info: FieldInfo) -> str:
    """Return the default as YAML would write it; "" if the field is required."""
    value = info.get_default(call_default_factory=True, validated_data={})
    if info.is_required():
        return ""
    return json.dumps(value, default=list) if not isinstance(value, BaseModel) else "{}"


def _type(annotation: Any) -> str:
    """Return a type in the words of the command line: `number`, `a, b or c`, `list of text`, ..."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _type(args[0])
    if origin is typing.Literal:
        return ", ".join(f"`{json.dumps(value).strip(chr(34))}`" for value in args)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(arg) for arg in args)
    if origin in (tuple, list):
        return f"list of {_type(args[0])}"
    if origin is dict:
        return "mapping"
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return "section"
    names = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null"}
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))
