"""Shapes of the rows of users' files: pydantic models whose first fault is a DataError at its place."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints, TypeAdapter, ValidationError

from hamr.errors import DataError

T = TypeVar("T")
NonEmptyText = Annotated[str, StringConstraints(pattern=r"\S")]
"""A text that is not blank."""
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


class Shape(BaseModel):
    """Fields of an object that a reader needs. Others are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")


def check_shape(shape: type[T], value: Any, where: str) -> T:
    """Return the value in its shape. Raise DataError at the place of the first fault if it does not have it."""
    try:
        return _adapter(shape).validate_python(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        parts = [part for part in first["loc"] if part not in _UNION]
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
        place = where + (path if path[:1] in ("", "[") else f": {path}")
        if first["type"] == "missing":
            raise DataError(place, sorted(first["input"]), f"missing field; add {first['loc'][-1]!r}") from None
        message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        remedy = _REMEDIES.get(first["type"], message)
        raise DataError(place, first["input"], remedy.format(**first.get("ctx", {}))) from None


_UNION = ("str", "bool", "int", "float")
"""Members of a union, which pydantic adds to the place of a fault."""
_REMEDIES = {
    "model_type": "must be a JSON object",
    "dataclass_type": "must be a JSON object",
    "dict_type": "must be a JSON object",
    "list_type": "must be a list",
    "extra_forbidden": "unknown field; remove it",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must be a text that is not empty",
    "too_short": "must have {min_length} items",
    "too_long": "must have {max_length} items",
}
