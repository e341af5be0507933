"""Columns of the rows of an export or a corpus: a name, or a path into an object in a column (`customer.tier`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hamr.errors import DataError, did_you_mean

SHOWN_COLUMNS = 30


def list_columns(names: Sequence[str]) -> str:
    """Return the names of columns for a message, the first SHOWN_COLUMNS of them."""
    more = f" and {len(names) - SHOWN_COLUMNS} more" if len(names) > SHOWN_COLUMNS else ""
    return f"{', '.join(names[:SHOWN_COLUMNS])}{more}"


def value_at(row: Mapping[str, Any], column: str) -> Any:
    """Return the value of a column or path, None if there is none."""
    if column in row:
        return row[column]
    value: Any = row
    for name in column.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def check_column(place: str, column: str | None, rows: Iterable[Mapping[str, Any]], source: str) -> None:
    """Raise DataError for a column that no row has. None is accepted."""
    rows = list(rows)
    if column is not None and rows and not any(_has(row, column) for row in rows):
        there = sorted({name for row in rows for name in row})
        remedy = f"{source} has no such column; {did_you_mean(column, there)}columns: {list_columns(there)}"
        raise DataError(place, column, remedy)


def group_meta(row: Mapping[str, Any], column: str | None) -> dict[str, str]:
    """Return the `meta` that keeps rows with the same value of the column in one split, nothing for a blank value.

    Spaces around a value and the case of an e-mail address make no difference. The group is a digest, since a
    customer's name or number is private.
    """
    value = value_at(row, column) if column else None
    text = "" if value is None else value.strip() if isinstance(value, str) else json.dumps(value, sort_keys=True)
    if not text:
        return {}
    text = text.casefold() if "@" in text else text
    return {"group": hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]}


def _has(row: Mapping[str, Any], column: str) -> bool:
    if column in row:
        return True
    outer, _, last = column.rpartition(".")
    inner = value_at(row, outer) if outer else None
    return isinstance(inner, Mapping) and last in inner
