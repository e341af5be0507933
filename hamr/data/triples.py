"""Calibration data of the cascade as JSONL, CSV or Parquet: scores of reranker, judge and teacher per reply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hamr.data.tables import read_table
from hamr.errors import DataError

FIELDS = ("s_r", "s_j", "y")


@dataclass(frozen=True, kw_only=True)
class Triples:
    """Columns of equal length in [0, 1]. `hard` holds the judge's verdicts as 1, 0.5 and 0, if known."""

    s_r: Sequence[float]
    s_j: Sequence[float]
    y: Sequence[float]
    hard: Sequence[float] | None = None

    def rows(self) -> Iterator[dict[str, float]]:
        """Yield one object per reply, as `read_triples` reads it by default."""
        for i, (s_r, s_j, y) in enumerate(zip(self.s_r, self.s_j, self.y, strict=True)):
            yield {"s_r": s_r, "s_j": s_j, "y": y} | ({"hard": self.hard[i]} if self.hard is not None else {})


def read_triples(path: str | Path, names: Mapping[str, str]) -> Triples:
    """Read the columns `s_r`, `s_j`, `y` and, if the first row has one, `hard`.

    `names` maps these to other names; a `hard` in it is required. Other columns are ignored. In a CSV, names in the
    header are stripped, empty rows are skipped, and numbers may have decimal commas where the delimiter is a semicolon.
    Raises DataError at `file:line: field` (Parquet: row number) for a value that is missing, not a number, or outside
    [0, 1].
    """
    path = Path(path)
    fields = {field: names.get(field, field) for field in (*FIELDS, "hard")}
    try:
        table = read_table(path, strict=True)
    except DataError as error:
        raise DataError(error.where.replace("input", "scores"), error.value, error.remedy) from error
    rows = table.rows
    if table.delimiter is not None:
        stripped = ((number, {name.strip(): value for name, value in row.items()}) for number, row in rows)
        rows = [(number, row) for number, row in stripped if any(value and value.strip() for value in row.values())]
    if not rows:
        raise DataError(str(path), "", "contains no rows; write one reply per line")
    if "hard" not in names and fields["hard"] not in rows[0][1]:
        del fields["hard"]
    columns: dict[str, list[float]] = {field: [] for field in fields}
    for number, row in rows:
        for field, name in fields.items():
            columns[field].append(_score(row, name, f"{path}:{number}", comma=table.delimiter == ";"))
    return Triples(s_r=columns["s_r"], s_j=columns["s_j"], y=columns["y"], hard=columns.get("hard"))


def _score(row: Mapping[str, Any], name: str, where: str, *, comma: bool) -> float:
    if name not in row:
        raise DataError(f"{where}: {name}", sorted(row), f"missing field; add {name!r}, or name its field")
    value = row[name]
    number = value
    if isinstance(value, str):
        try:
            number = float(value.replace(",", ".") if comma else value)
        except ValueError:
            number = None
    if not isinstance(number, int | float) or isinstance(number, bool):
        raise DataError(f"{where}: {name}", value, "must be a number")
    if not 0.0 <= number <= 1.0:
        raise DataError(f"{where}: {name}", value, "is not a score; scores lie in [0, 1]")
    return float(number)
