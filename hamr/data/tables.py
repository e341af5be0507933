"""Rows of an export: JSONL, CSV or Parquet, as objects with their line."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hamr.data.samples import parse_line
from hamr.errors import DataError

ENDINGS = (".jsonl", ".csv", ".parquet")
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TicketFault:
    """A rejected ticket: `message` is one line, `row` the data of the export."""

    line: int
    message: str
    row: Any = None


def read_table(path: Path) -> tuple[list[tuple[int, Row]], list[TicketFault]]:
    """Return (line, row) of the export, and the invalid lines. Raise DataError for an unreadable file."""
    if path.suffix.lower() not in ENDINGS:
        raise DataError("input", str(path), f"must end in {', '.join(ENDINGS)}")
    try:
        if path.suffix.lower() == ".parquet":
            return list(enumerate(_parquet(path), start=1)), []
        if path.suffix.lower() == ".csv":
            return list(_csv(path)), []
        return _json_lines(path.read_bytes(), path)
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise DataError("input", str(path), f"{reason}; give an export") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError("input", str(path), f"cannot be read as UTF-8 CSV ({error})") from error


def _json_lines(raw: bytes, path: Path) -> tuple[list[tuple[int, Row]], list[TicketFault]]:
    rows: list[tuple[int, Row]] = []
    faults = []
    for number, line in enumerate(raw.splitlines(), start=1):
        where = f"{path}:{number}: line"
        try:
            text = line.decode("utf-8-sig").strip()
            row = parse_line(text, where) if text else None
            if row is not None and not isinstance(row, dict):
                raise DataError(where, row, "must be a JSON object")
            if row is not None:
                rows.append((number, row))
        except UnicodeDecodeError:
            faults.append(TicketFault(line=number, message=f"{where}: is not UTF-8; save the file as UTF-8"))
        except DataError as error:
            faults.append(TicketFault(line=number, message=str(error), row=line.decode("utf-8", "replace")))
    return rows, faults


def _csv(path: Path) -> Iterator[tuple[int, Row]]:
    csv.field_size_limit(1 << 30)  # a column may hold a whole conversation
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        for row in reader:
            if None in row:  # an unquoted text with a comma
                remedy = f"the line has more fields than the header's {len(row) - 1}; put quotes around its texts"
                raise DataError(f"{path}:{reader.line_num}: line", row[None], remedy)
            yield reader.line_num, row


def _parquet(path: Path) -> list[Row]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError("input", str(path), "Parquet needs pyarrow: pip install pyarrow, or export CSV") from error
    try:
        return [_plain(row) for row in pyarrow.parquet.read_table(path).to_pylist()]
    except pyarrow.ArrowException as error:
        raise DataError("input", str(path), f"is not a Parquet file ({' '.join(str(error).split())[:120]})") from error


def _plain(value: Any) -> Any:
    """Convert a table value to JSON: times as ISO 8601, other objects as text, NaN as null."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
