"""Folder of an evaluation with an exclusive lock and append-only row files."""

from __future__ import annotations

import fcntl
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from hamr.errors import BadInput
from hamr.protocols import Ask
from hamr.report.values import Column, Table
from hamr.types import Answer, Question

LOCK = ".lock"
CALLS = "calls.jsonl"


class RowFolder(ABC):
    """Row files of an evaluation, to which a subclass appends. A context manager; locked by one process at a time."""

    def __init__(self, folder: Path, names: Sequence[str], *, ascii_only: bool = True) -> None:
        """Lock the folder, load its rows and open its files. Raises BadInput if one of these is impossible.

        `ascii_only`: escape other characters, which lone surrogates in the output of a model require.
        """
        self.folder, self._ascii, self._lock = folder, ascii_only, lock_folder(folder)
        try:
            self._load()
            self._files = {name: append_to(folder / name) for name in names}
        except BaseException:
            self._lock.close()
            raise

    @abstractmethod
    def _load(self) -> None:
        """Load the rows. Raises BadInput for a damaged one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for file in self._files.values():
            file.close()
        self._lock.close()

    def _write(self, name: str, row: Mapping[str, Any]) -> None:
        """Append and flush the row, so that it survives a killed process."""
        file = self._files[name]
        file.write(json.dumps(row, ensure_ascii=self._ascii) + "\n")
        file.flush()


@contextmanager
def counted_calls(asks: Mapping[str, Ask], folder: Path) -> Iterator[dict[str, Ask]]:
    """Append the tokens and the cost of every answer to calls.jsonl, where the rows of an evaluation lack them."""
    with append_to(folder / CALLS) as file:

        def counting(name: str, ask: Ask) -> Ask:
            async def ask_and_count(question: Question) -> Answer:
                answer = await ask(question)
                if (call := answer.call) is not None:
                    tokens = call.prompt_tokens + call.output_tokens
                    file.write(json.dumps({"pool": name, "tokens": tokens, "cost": call.cost}) + "\n")
                    file.flush()
                return answer

            return ask_and_count

        yield {name: counting(name, ask) for name, ask in asks.items()}


def usage(folder: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return {who: answers, tokens and cost} over the rows of the files: of each policy, and of each judge.

    All calls of the folder count, those of earlier commands too. The cost is in the unit of the pools' prices.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        for _, row in rows_of(folder / name):
            judge = row.get("judge") or row.get("component")
            who = f"judge {judge}" if judge else " ".join(f"{k} {row[k]}" for k in ("pool", "policy") if k in row)
            one = found.setdefault(who, {"answers": 0, "tokens": 0, "cost": 0.0})
            one["answers"] += 1
            one["tokens"] += (row.get("tokens") or 0) + (row.get("prompt_tokens") or 0)
            one["cost"] += row.get("cost") or 0.0
    return found


def usage_table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the table of `usage` with its sums."""
    rows = [(who, *(one[key] for key in ("answers", "tokens", "cost"))) for who, one in found.items()]
    total = ("all", *(sum(one[key] for one in found.values()) for key in ("answers", "tokens", "cost")))
    columns = (Column("who"), Column("answers", "{:,}"), Column("tokens", "{:,}"), Column("cost", "{:.4f}"))
    return Table("Tokens and cost", columns, (*rows, total) if rows else ())


def lock_folder(folder: Path) -> IO[str]:
    """Create the folder and lock it until the returned file is closed.

    Raises BadInput where another process holds the lock, or where the folder cannot be written.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = (folder / LOCK).open("a")
    except OSError as error:
        raise BadInput("output", str(folder), f"cannot be written ({error.strerror}); give another folder") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise BadInput("output", str(folder), "another evaluation is writing to it; wait for it to finish") from error
    return file


def append_to(path: Path) -> IO[str]:
    """Open for appending after the last complete line; a partial line of a killed process is truncated."""
    if path.exists():
        with path.open("rb+") as file:
            content = file.read()
            file.truncate(content.rfind(b"\n") + 1)
    return path.open("a", encoding="utf-8")


def rows_of(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (file:line, row) of every complete line. Raises BadInput for one that is not a JSON object."""
    if not path.is_file():
        return
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                return
            where = f"{path}:{number}"
            try:
                row = json.loads(line)
            except ValueError as error:
                raise BadInput(
                    where, line[:40], "is not valid JSON; restore the line, or give another folder"
                ) from error
            if not isinstance(row, dict):
                raise BadInput(where, line[:40], "is not a JSON object; restore the line, or give another folder")
            yield where, row
