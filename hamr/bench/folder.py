"""Folder of an evaluation with an exclusive lock and append-only row files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from hamr.errors import BadInput, first_fault
from hamr.files import JsonlWriter, numbered_rows, read_jsonl, try_lock
from hamr.protocols import Ask
from hamr.report.values import Column, Table
from hamr.types import Answer, Question

LOCK = ".lock"
CALLS = "calls.jsonl"
Parsed = TypeVar("Parsed")


class RowFolder(ABC):
    """Row files `names` of an evaluation, to which a subclass appends. A context manager; locked by one process at a
    time."""

    names: ClassVar[tuple[str, ...]]
    ascii_only: ClassVar[bool] = True

    def __init__(self, folder: Path) -> None:
        """Lock the folder, load its rows and open its files. Raises BadInput where another process uses the folder, it
        cannot be written, or a row is damaged."""
        self.folder, self._lock = folder, lock_folder(folder)
        try:
            self._load()
            self._files = {name: JsonlWriter(folder / name, ascii_only=self.ascii_only) for name in self.names}
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
        self._files[name].write(row)


@contextmanager
def counted_calls(asks: Mapping[str, Ask], folder: Path) -> Iterator[dict[str, Ask]]:
    """Append the tokens and the cost of every answer to calls.jsonl, where the rows of an evaluation lack them."""
    with closing(JsonlWriter(folder / CALLS)) as file:

        def counting(name: str, ask: Ask) -> Ask:
            async def ask_and_count(question: Question) -> Answer:
                answer = await ask(question)
                if (call := answer.call) is not None:
                    tokens = call.prompt_tokens + call.output_tokens
                    file.write({"pool": name, "tokens": tokens, "cost": call.cost})
                return answer

            return ask_and_count

        yield {name: counting(name, ask) for name, ask in asks.items()}


def usage(folder: Path, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return {who: answers, tokens and cost} over the rows of the files: of each policy, and of each judge.

    All calls of the folder count, those of earlier commands too. The cost is in the unit of the pools' prices.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        for row in read_jsonl(folder / name):
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
    if not try_lock(file):
        file.close()
        raise BadInput("output", str(folder), "another evaluation is writing to it; wait for it to finish")
    return file


def parsed_rows(path: Path, kind: type[Parsed], what: str) -> Iterator[tuple[dict[str, Any], Parsed]]:
    """Yield every row as an object and as a value of its class. Raises BadInput for a row that is not `what`."""
    parse = TypeAdapter(kind).validate_python
    for where, row in numbered_rows(path):
        try:
            yield row, parse(row)
        except ValidationError as error:
            raise BadInput(where, first_fault(error), f"is not {what}; restore the line, or remove it") from None


def differences(before: Any, now: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Return (key, old value, new value) for every difference between two JSON-like settings.

    >>> list(differences({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2}))
    [('a.b', 1, 3)]
    """
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*before, *now]):
            yield from differences(before.get(key), now.get(key), f"{path}.{key}" if path else str(key))
    elif before != now:
        yield path, before, now
