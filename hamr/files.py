"""Files that survive a killed process: atomic writes, and rows of JSON that are appended and flushed one by one."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NoReturn

from hamr.errors import RunFolderError
from hamr.security.redaction import blot

_PIECE = 1 << 20


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write to a temporary file and rename it, so that a reader sees either the old file or the new one."""
    aside = path.with_name(f".{path.name}.tmp")
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666), "wb") as f:
        f.write(content.encode() if isinstance(content, str) else content)
        f.flush()
        os.fsync(f.fileno())
    aside.replace(path)


def try_lock(file: IO[Any]) -> bool:
    """Lock an open file for this process until it is closed. Return False if another process holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class JsonlWriter:
    """Writer of one JSON object per line, flushed, without secrets of the environment.

    An incomplete last line of a killed process is removed.
    """

    def __init__(self, path: Path | str, *, ascii_only: bool = True) -> None:
        """`ascii_only`: escape other characters, which lone surrogates in the output of a model require."""
        self.path, self._ascii = Path(path), ascii_only
        cut_torn_tail(self.path)
        self._file = self.path.open("a", encoding="utf-8")

    def write(self, row: Mapping[str, Any]) -> None:
        self._file.write(blot(json.dumps(row, ensure_ascii=self._ascii, allow_nan=False)) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def numbered_rows(path: Path | str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (file:line, object) of a file that may still be written, without an incomplete last line.

    A missing file has no objects. Raises RunFolderError for any other line that is not an object.
    """
    path = Path(path)
    if not path.exists():
        return
    with path.open("rb") as f:
        for number, line in enumerate(f, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                start = line[:60].decode(errors="replace")
                raise RunFolderError(f"{path}:{number}", start, "damaged; restore the line, or remove it")
            yield f"{path}:{number}", row


def read_jsonl(path: Path | str) -> Iterator[dict[str, Any]]:
    """Yield the objects of `numbered_rows`."""
    return (row for _, row in numbered_rows(path))


def read_object(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file, empty if there is no file. Raises RunFolderError for other content."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunFolderError("file", str(path), f"is not JSON ({error}); restore it") from None
    if not isinstance(found, dict):
        raise RunFolderError("file", str(path), "is not a JSON object; restore it")
    return found


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON. Raise ValueError for a key that is given twice."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is given twice")
        found[key] = value
    return found


def refuse_constant(name: str) -> NoReturn:
    """Raise ValueError for NaN and Infinity."""
    raise ValueError(f"{name} is not JSON")


def encodable(text: str) -> str:
    """Return the text with lone surrogates as "?". JSON can encode them, files and tokenizers cannot."""
    return text.encode("utf-8", "replace").decode()


def cut_torn_tail(path: Path) -> None:
    """Truncate a file after its last complete line, in place. A rewrite that is killed could lose all of it."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - _PIECE)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n") + 1
            end = start + found if found else start
            if found:
                break
        if end < size:
            file.truncate(end)
