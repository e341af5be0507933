"""Results of the items of a data recipe, and the file to which they are appended."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from hamr.data.samples import stream_rows
from hamr.files import cut_torn_tail

_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class WorkItem:
    """One unit of work. An earlier result with this `key` is still valid. `content` belongs to the recipe."""

    id: str
    key: str
    content: Any


@dataclass(frozen=True, kw_only=True)
class ItemResult:
    """Result of an item.

    `kept` is JSON-like; None: dropped by the check `reason`. `passing`: a temporary failure. `notes` are counted in the
    table (repaired, a candidate rejected by ...). `texts` holds every requested text, in order.
    """

    kept: Mapping[str, Any] | None = None
    reason: str = ""
    detail: str = ""
    notes: tuple[str, ...] = ()
    passing: bool = False
    texts: tuple[Mapping[str, Any], ...] = ()


def item_key(*parts: Any) -> str:
    """Return a short digest of all inputs of a result. An equal key means that the result is still valid."""
    text = json.dumps([_VERSION, *parts], sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(kw_only=True)
class WorkProgress:
    """Results by item id, and the file to which they are appended.

    Results in the file have no texts in memory (`whole` reads them), because those of 10^5 items would not fit.
    """

    path: Path
    done: dict[str, ItemResult] = field(default_factory=dict)
    _places: dict[str, int] = field(default_factory=dict, repr=False)
    _file: BinaryIO | None = field(default=None, repr=False)

    @classmethod
    def of(cls, path: Path, items: Iterable[WorkItem]) -> WorkProgress:
        """Load the results in `path` that an earlier call wrote for the same items (equal id and key)."""
        keys = {item.id: item.key for item in items}
        found = cls(path=path)
        for at, row in read_progress(path):
            if isinstance(row, dict) and row.get("id") in keys and keys[row["id"]] == row.get("key"):
                found.done[row["id"]] = dataclasses.replace(_parse_row(row), texts=())
                found._places[row["id"]] = at
        return found

    def finish(self, item: WorkItem, made: ItemResult) -> None:
        """Store a result. Temporary failures are not written to the file, so that the next call retries them."""
        if made.passing:
            self.done[item.id] = made
            return
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
        row = {"id": item.id, "key": item.key, "made": vars(made)}
        at = self._file.tell()
        self._file.write(json.dumps(row, ensure_ascii=True).encode() + b"\n")
        self._file.flush()
        self.done[item.id], self._places[item.id] = dataclasses.replace(made, texts=()), at

    def whole(self, name: str) -> ItemResult:
        """Return the result of an item with every text."""
        if name not in self._places:
            return self.done[name]
        with self.path.open("rb") as file:
            file.seek(self._places[name])
            return _parse_row(json.loads(file.readline()))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_progress(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield (file offset, row) of an earlier call. A last line that was truncated by a kill is removed."""
    cut_torn_tail(path)
    if not path.is_file():
        return
    at = 0
    for _, raw, row in stream_rows(path) if path.stat().st_size else ():
        yield at + len(raw) - len(raw.lstrip()), row
        at += len(raw)


def _parse_row(row: Mapping[str, Any]) -> ItemResult:
    made = row["made"]
    return ItemResult(**{**made, **{name: tuple(made[name]) for name in ("notes", "texts")}})


def summary(made: Iterable[ItemResult]) -> list[tuple[str, int]]:
    """Return (label, count): kept, dropped by each check (most common first), temporary failures, then the notes."""
    results = list(made)
    dropped = Counter(m.reason for m in results if m.kept is None and not m.passing)
    passing = Counter(m.reason for m in results if m.kept is None and m.passing)
    notes = Counter(note for m in results for note in m.notes)
    return [
        ("kept", sum(m.kept is not None for m in results)),
        *((f"dropped: {reason}", count) for reason, count in dropped.most_common()),
        *((f"temporary failure, to be retried: {reason}", count) for reason, count in passing.most_common()),
        *notes.most_common(),
    ]
