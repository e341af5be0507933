"""Rows of an export as objects with their line: JSONL, a JSON array, CSV, Parquet or Arrow.

The delimiter and the encoding of a CSV are detected unless they are given; `ExportTable.form` states them.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charset_normalizer import from_bytes

from hamr.data.samples import parse_line
from hamr.errors import DataError

ENDINGS = (".jsonl", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".ndjson")
DELIMITERS: Mapping[str, str] = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
_BOMS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe\0\0": "utf-32", b"\0\0\xfe\xff": "utf-32"}
_BOMS |= {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_LEGACY = ["cp1252", "gb18030", "big5", "shift_jis", "cp1251"]
"""Encodings other than UTF-8 that are detected, the likelier first. gb18030 includes GBK and GB 2312."""
_PROBE = 1 << 16
_BETWEEN = re.compile(r"[\s,]*")
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TicketFault:
    """A rejected ticket: `message` is one line, `row` the data of the export."""

    line: int
    message: str
    row: Any = None


@dataclass(frozen=True, kw_only=True)
class ExportTable:
    """Rows with their lines, and the invalid lines. `form` says how the file was read."""

    rows: list[tuple[int, Row]]
    faults: list[TicketFault]
    form: str
    short: frozenset[int] = frozenset()
    """Lines of CSV rows with fewer fields than the header. Their missing columns are None."""
    delimiter: str | None = None
    """Delimiter of a CSV, None for other formats."""


def read_table(
    path: Path,
    *,
    encoding: str | None = None,
    delimiter: str | None = None,
    strict: bool = False,
    only_utf8: bool = False,
) -> ExportTable:
    """Return the rows of the export. Raise DataError for an unreadable file.

    Args:
        path: The export. Its ending names the format.
        encoding: Encoding of the text. By default, that of a byte order mark, UTF-8, or for a CSV the likeliest.
        delimiter: Delimiter of a CSV. By default, a tab for `.tsv`, else the one in its header.
        strict: Raise DataError for the first invalid line of JSON instead of collecting the faults.
        only_utf8: The command has no option for the encoding of JSON, so no message suggests it.
    """
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise DataError("input", str(path), f"must end in {', '.join(ENDINGS)}")
    try:
        raw = path.read_bytes()
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise DataError("input", str(path), f"{reason}; give an export") from error
    if ending in (".parquet", ".arrow"):
        return ExportTable(rows=list(enumerate(_columns(raw, path), start=1)), faults=[], form=ending[1:].title())
    if ending in (".csv", ".tsv"):
        return _csv(raw, path, encoding, delimiter)
    encoding = encoding or _encoding_of_mark(raw)
    if encoding and encoding != "utf-8-sig":
        raw = _decode(raw, path, encoding).encode()
    return _json(raw, path, strict, "" if only_utf8 else ", or give encoding=<name>, for example cp1252 or gb18030")


# --- JSON --------------------------------------------------------------------------------------


def _json(raw: bytes, path: Path, strict: bool, option: str) -> ExportTable:
    """Read JSON. `option` follows the remedy for a text that is not UTF-8."""
    start = raw.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    form, numbered = "JSONL", enumerate(raw.splitlines(), start=1)
    values: Iterator[tuple[int, bytes]] = ((number, line) for number, line in numbered if line.strip())
    if start == b"[":
        form, values = "a JSON array", _elements(_decode(raw, path, "utf-8-sig", option), path)
    elif start == b"{" and path.suffix.lower() == ".json":
        with contextlib.suppress(ValueError, RecursionError):  # several objects are JSONL
            json.loads(raw)
            form, values = "JSON", iter([(1, raw)])
    rows, faults = list[tuple[int, Row]](), list[TicketFault]()
    for line, value in values:
        try:
            rows.append((line, _object(value, f"{path}:{line}: line", option)))
        except DataError as error:
            if strict:
                raise
            faults.append(TicketFault(line=line, message=str(error), row=value.decode("utf-8", "replace")))
    return ExportTable(rows=rows, faults=faults, form=form)


def _elements(text: str, path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the elements of an array, or of several (pages of an API), with their lines."""
    decoder = json.JSONDecoder()
    at, end, line = 0, text.index("[") + 1, 1
    while True:
        start = _BETWEEN.match(text, end).end()  # type: ignore[union-attr]
        line, at = line + text.count("\n", at, start), start
        if text[start : start + 1] == "]":
            rest = text[start + 1 :].lstrip()
            if not rest:
                return
            end = len(text) - len(rest)
            line, at = line + text.count("\n", at, end), end
            if rest[0] != "[":
                raise DataError(f"{path}:{line}: line", rest[:80], "text after the end of the array; remove it")
            end += 1
            continue
        try:
            _, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            remedy = f"bad JSON ({error}); write an array of objects"
            raise DataError(f"{path}:{line}: line", text[start : start + 80], remedy) from error
        yield line, text[start:end].encode()


def _object(value: bytes, where: str, option: str) -> Row:
    try:
        row = parse_line(value.decode("utf-8-sig").strip(), where)
    except UnicodeDecodeError as error:
        raise DataError(where, value[:40], f"is not UTF-8; save the file as UTF-8{option}") from error
    if not isinstance(row, dict):
        raise DataError(where, row, "must be a JSON object")
    return row


# --- CSV ---------------------------------------------------------------------------------------


def _csv(raw: bytes, path: Path, encoding: str | None, delimiter: str | None) -> ExportTable:
    encoding = encoding or _encoding(raw, path)
    text = _decode(raw, path, encoding)
    hint, first = re.match(r"sep=(.)\r?\n", text), 0  # Excel's own line before the header
    if hint:
        delimiter, text, first = delimiter or hint[1], text[hint.end() :], 1
    delimiter = delimiter or ("\t" if path.suffix.lower() == ".tsv" else _delimiter(text))
    found = list(_csv_rows(text, path, delimiter, first))
    rows = [(first + line, row) for line, row, _ in found]
    short = frozenset(first + line for line, _, is_short in found if is_short)
    name = next((name for name, character in DELIMITERS.items() if character == delimiter), repr(delimiter))
    form = f"CSV, delimiter {name}, encoding {encoding}"
    sign = next(iter(re.findall(r"\w*[^\W\x00-\x7f]\w*", text)), "") if encoding in _LEGACY else ""
    form += f" (it contains {sign[:20]!r})" if sign else ""
    return ExportTable(rows=rows, faults=[], form=form, short=short, delimiter=delimiter)


def _csv_rows(text: str, path: Path, delimiter: str, first: int) -> Iterator[tuple[int, Row, bool]]:
    """Yield (line, row, whether it has fewer fields than the header)."""
    csv.field_size_limit(1 << 30)  # a column may hold a whole conversation
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
    before = 0
    try:
        header = next(reader, [])
        if twice := next((name for name in header if name and header.count(name) > 1), None):
            raise DataError(f"{path}:{first + 1}: header", twice, "two columns have this name; rename one")
        before = reader.line_num
        for values in reader:
            line, before = before + 1, reader.line_num
            extra = values[len(header) :]
            if any(extra):  # an unquoted text with a delimiter
                remedy = f"the line has more fields than the header's {len(header)}; put quotes around its texts"
                raise DataError(f"{path}:{first + line}: line", extra, remedy)
            if values:
                row = {**dict.fromkeys(header), **dict(zip(header, values, strict=False))}
                yield line, row, len(values) < len(header)
    except csv.Error as error:
        remedy = f"cannot be read as CSV ({error}); close every quote, and write a quote inside a quoted text twice"
        raise DataError(f"{path}:{first + before + 1}: line", re.split(r"\r\n?|\n", text)[before], remedy) from error


_HEADER = re.compile(r'(?:(?<![^,;\t|])"(?:[^"]++|"")*+"|[^\r\n])*')
"""The first line, with the line breaks inside its quoted fields."""


def _delimiter(text: str) -> str:
    """Return the delimiter that is most frequent in the header outside quotes, a comma if it has one column."""
    header = re.sub(r'"[^"]*"', "", _HEADER.match(text).group())  # type: ignore[union-attr]
    return max(DELIMITERS.values(), key=header.count)


def _encoding_of_mark(raw: bytes) -> str | None:
    """Return the encoding of the byte order mark, or UTF-16 if every second byte is 0. None for other texts."""
    marked = next((name for mark, name in _BOMS.items() if raw.startswith(mark)), None)
    big, little = (raw[place:64:2].count(0) for place in (0, 1))
    if marked is None and big + little:
        return "utf-16-be" if big > little else "utf-16-le"
    return marked


def _encoding(raw: bytes, path: Path) -> str:
    """Return the encoding of a byte order mark, UTF-8 if the bytes are valid, or else the likeliest one.

    Lines of plain ASCII say nothing and are ignored. DataError if at most half of the others are not UTF-8: as another
    encoding, the rest would be unreadable.
    """
    if marked := _encoding_of_mark(raw):
        return marked
    if _is_utf_8(raw):
        return "utf-8"
    telling = [(number, line) for number, line in enumerate(raw.split(b"\n"), 1) if not line.isascii()]
    foreign = [(number, line) for number, line in telling if not _is_utf_8(line)]
    if 2 * len(foreign) <= len(telling):
        number, line = foreign[0]
        remedy = "is not UTF-8, unlike other lines; save it as UTF-8, or give encoding=<name> for the whole file"
        more = f" ({len(foreign) - 1} more)" if len(foreign) > 1 else ""
        raise DataError(f"{path}:{number}: line", line[:40], remedy + more)
    probe = b"\n".join(line for _, line in telling)[:_PROBE].rpartition(b"\n")
    found = from_bytes(probe[0] or probe[2], cp_isolation=_LEGACY)
    for match in sorted(found, key=lambda match: (match.chaos, _LEGACY.index(match.encoding))):
        with contextlib.suppress(UnicodeDecodeError):
            raw.decode(match.encoding)
            return match.encoding
    known = ", ".join(_LEGACY)
    raise DataError("input", str(path), f"its encoding is neither UTF-8 nor {known}; give encoding=<name>")


def _is_utf_8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _decode(raw: bytes, path: Path, encoding: str, option: str | None = None) -> str:
    """Return the text. `option`: as in `_json`, by default only the option is suggested."""
    try:
        return raw.decode(encoding).removeprefix("\ufeff")
    except UnicodeError as error:
        line = raw.count(b"\n", 0, getattr(error, "start", 0)) + 1
        remedy = f"is not {encoding}; give encoding=<name>, for example cp1252 or gb18030"
        if option is not None:
            remedy = f"is not UTF-8; save the file as UTF-8{option}"
        raise DataError(f"{path}:{line}: line", raw.split(b"\n")[line - 1][:40], remedy) from error


# --- Parquet and Arrow -------------------------------------------------------------------------


def _columns(raw: bytes, path: Path) -> list[Row]:
    """Read Parquet, or the Arrow stream that `datasets` writes to disk."""
    import pyarrow
    import pyarrow.parquet

    source = pyarrow.BufferReader(raw)
    try:
        if path.suffix.lower() == ".arrow":
            table = pyarrow.ipc.open_stream(source).read_all()
        else:
            table = pyarrow.parquet.read_table(source)
        return [_plain(row) for row in table.to_pylist()]
    except pyarrow.ArrowException as error:
        kind = path.suffix[1:].title()
        raise DataError("input", str(path), f"is not a {kind} file ({' '.join(str(error).split())[:120]})") from error


def _plain(value: Any) -> Any:
    """Convert a table value to JSON: times as ISO 8601, bytes and other objects as text, NaN as null."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, bytes):  # texts whose writer did not mark them as such
        return value.decode("utf-8", "replace")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
