"""What became of a recipe's items, and the file that it is appended to as it comes."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from hamr.data.samples import read_rows

_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Item:
    """One thing to make something of. `key` tells whether what an earlier call made of it still holds
    (`item_key`); `content` is the recipe's own."""

    id: str
    key: str
    content: Any


@dataclass(frozen=True, kw_only=True)
class Made:
    """What became of an item. `kept` is JSON-like; None: dropped, by the check `reason`. `notes` are counted in the
    table (repaired, a candidate rejected by ...). `texts`: every text that was asked for, in order."""

    kept: Mapping[str, Any] | None = None
    reason: str = ""
    detail: str = ""
    notes: tuple[str, ...] = ()
    passing: bool = False
    texts: tuple[Mapping[str, Any], ...] = ()


def item_key(*told: Any) -> str:
    """What a result depends on, in few letters: with the same key it need not be made again."""
    text = json.dumps([_VERSION, *told], sort_keys=True, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(kw_only=True)
class Progress:
    """Results by item id, and the file that they are appended to as they come."""

    path: Path
    done: dict[str, Made] = field(default_factory=dict)
    _file: TextIOWrapper | None = field(default=None, repr=False)

    @classmethod
    def of(cls, path: Path, items: Iterable[Item]) -> Progress:
        """What an earlier call left in `path` of these very items (same id and key)."""
        keys = {item.id: item.key for item in items}
        done = {}
        for row in read_progress(path):
            if isinstance(row, dict) and row.get("id") in keys and keys[row["id"]] == row.get("key"):
                made = row["made"]
                lists = {name: tuple(made[name]) for name in ("notes", "texts")}
                done[row["id"]] = Made(**{**made, **lists})
        return cls(path=path, done=done)

    def finish(self, item: Item, made: Made) -> None:
        """Keeps the result; one that failed in passing is not written down, so that the next call tries it again."""
        self.done[item.id] = made
        if made.passing:
            return
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a", encoding="utf-8")
        row = {"id": item.id, "key": item.key, "made": vars(made)}
        self._file.write(json.dumps(row, ensure_ascii=True) + "\n")
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_progress(path: Path) -> list[Any]:
    """The rows of an earlier call; a last line that was cut off when it was killed does not count, and goes."""
    if not path.is_file():
        return []
    raw = path.read_bytes()
    if not raw.endswith(b"\n"):
        path.write_bytes(raw[: raw.rfind(b"\n") + 1])
    return [row for _, row in read_rows(path)] if path.stat().st_size else []


def summary(made: Iterable[Made]) -> list[tuple[str, int]]:
    """(what, how many): kept, dropped by each check (commonest first), failed in passing, then the notes."""
    results = list(made)
    dropped = Counter(m.reason for m in results if m.kept is None and not m.passing)
    passing = Counter(m.reason for m in results if m.kept is None and m.passing)
    notes = Counter(note for m in results for note in m.notes)
    return [
        ("kept", sum(m.kept is not None for m in results)),
        *((f"dropped: {reason}", count) for reason, count in dropped.most_common()),
        *((f"in passing, to be tried again: {reason}", count) for reason, count in passing.most_common()),
        *notes.most_common(),
    ]
