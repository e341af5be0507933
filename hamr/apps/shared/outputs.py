"""Checks of output paths before a job starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hamr.errors import DataError


def output_folder(folder: Path, names: Sequence[str], *, overwrite: bool) -> Path:
    """Return the output folder. Raises DataError if it contains a file of `names`, unless `overwrite`."""
    no_file_above(folder)
    held = [name for name in names if (folder / name).exists()]
    if held and not overwrite:
        raise DataError("output", str(folder), f"already contains {held[0]}; give another folder or overwrite=true")
    return folder


def output_file(path: Path, *, overwrite: bool, source: Path | None = None) -> Path:
    """Return the output file. Raises DataError if it exists, unless `overwrite`, or if it is `source`, the input."""
    if source is not None and path.resolve() == source.resolve():
        raise DataError("output", str(path), "is the input; name another file")
    if path.is_dir():
        raise DataError("output", str(path), "is a folder; give a file")
    if path.exists() and not path.is_file():
        raise DataError("output", str(path), "is not a regular file; name a file")
    no_file_above(path.parent)
    if path.exists() and not overwrite:
        raise DataError("output", str(path), "already exists; give another file or overwrite=true")
    return path


def no_file_above(folder: Path) -> None:
    """Raise DataError where `folder` cannot be written: it, or one of its parents, is a file or read-only."""
    existing = next((path for path in (folder, *folder.parents) if path.exists()), None)
    if existing and not existing.is_dir():
        raise DataError("output", str(existing), "is a file; give a folder")
    if existing and not os.access(existing, os.W_OK | os.X_OK):
        raise DataError("output", str(existing), "cannot be written; give another folder, or change its permissions")
