"""Common parsing of the importers of public corpora."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hamr.errors import DataError


def json_object(path: Path, option: str, sections: Sequence[str]) -> dict[str, Any]:
    """Return a JSON file that is an object with an object at each of `sections`. Raise DataError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(option, str(path), f"{(error.strerror or 'unreadable').lower()}; give a JSON file") from error
    except ValueError as error:
        raise DataError(option, str(path), f"bad JSON ({error})") from error
    for section in sections:
        if not isinstance(content, dict) or not isinstance(content.get(section), dict):
            raise DataError(option, str(path), f"must be a JSON object with an object at {section!r}")
    return content


def need(row: Any, where: str, fields: Mapping[str, type]) -> None:
    """Raise DataError for a row that is not an object, or that has a missing field or one of the wrong type."""
    if not isinstance(row, dict):
        raise DataError(f"{where}: line", row, "must be a JSON object")
    for field, kind in fields.items():
        if field not in row:
            raise DataError(f"{where}: {field}", sorted(row), f"missing field; add {field!r}")
        if not isinstance(row[field], kind):
            raise DataError(f"{where}: {field}", row[field], f"must be of type {kind.__name__}")
