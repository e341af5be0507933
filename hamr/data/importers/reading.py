"""Common parsing of the importers of public corpora."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


def json_object(path: Path | None, option: str, sections: Sequence[str]) -> dict[str, Any]:
    """Return a JSON file that is an object with an object at each of `sections`. Raise DataError."""
    if path is None:
        raise DataError(option, None, f"missing; give {option}=FILE.json, or the corpus as it is published")
    content = json_file(path, option)
    if not isinstance(content, dict):
        raise DataError(option, str(path), "must be a JSON object")
    for section in sections:
        if not isinstance(content.get(section), dict):
            raise DataError(option, str(path), f"must be a JSON object with an object at {section!r}")
    return content
