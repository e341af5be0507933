"""Times in a column of an export: numbers, ISO 8601, dates with the day or the month first, or with a month's name.

`01/02/2026` alone is ambiguous. The order is decided over the whole column: one date with a number above 12 decides it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from datetime import datetime
from datetime import time as time_of_day
from typing import Any, Literal

import dateutil.parser

from hamr.errors import DataError

DateOrder = Literal["day_first", "month_first"]
_NUMERIC = re.compile(r"\s*(\d{1,2})([/.-])(\d{1,2})\2(?:\d{4}|\d{2})(?!\d)")
"""A date that ends with the year. Dates that begin with a year of four digits are ISO 8601."""
_SINGLE = re.compile(r"(?<![\d.])(\d)(?![\d.])")
"""A number without the zero that ISO 8601 writes before it: 2026-3-1 9:05."""
_WORDED = re.compile(r"\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)|\d\s?[ap]\.?m\b", re.IGNORECASE)
"""The name of a month, or AM or PM after a time: Jan 2, 2026 1:05 PM."""
_DEFAULT = datetime(2000, 1, 1)
"""The parts that a text leaves out, such as the date of `1:05 PM`."""
_ISO = "write the dates as ISO 8601 (2026-01-31)"


def date_order(column: str, times: Iterable[tuple[str, Any]], given: DateOrder | None = None) -> DateOrder | None:
    """Return the order of day and month in a column, None if it has no such dates.

    Args:
        column: Name of the column, for messages.
        times: (place, value) of every row.
        given: Order that the user names. Without it, a column in which every date has two meanings is refused.

    Raises:
        DataError: The dates have different orders, another one than `given`, or an ambiguous one.
    """
    found: dict[DateOrder, tuple[str, str]] = {}
    unclear: tuple[str, str] | None = None
    for place, value in times:
        match = _NUMERIC.match(value) if isinstance(value, str) else None
        if not match:
            continue
        first, second = int(match[1]), int(match[3])
        if match[2] == "." or first > 12:  # dates with dots have the day first everywhere
            found.setdefault("day_first", (place, value))
        elif second > 12:
            found.setdefault("month_first", (place, value))
        elif first != second:
            unclear = unclear or (place, value)
    for order, (place, value) in found.items():
        if given and order != given:
            raise DataError(f"{place}: {column}", value, f"contradicts dates={given}; remove the option, or {_ISO}")
    if len(found) == 2:
        (place, value), (other, _) = found["day_first"], found["month_first"]
        raise DataError(f"{place}: {column}", value, f"has the day first, but that of {other} the month; {_ISO}")
    if given or found:
        return given or next(iter(found))
    if unclear:
        remedy = "no date of the column tells day from month; give dates=day_first or dates=month_first"
        raise DataError(f"{unclear[0]}: {column}", unclear[1], remedy)
    return None


def moment(time: Any, place: str, order: DateOrder | None) -> Any:
    """Return a comparable time. Texts, the only type in CSV, would sort 10 before 9. Raise DataError."""
    if not isinstance(time, str):
        return time
    text = time.strip()
    with contextlib.suppress(ValueError, OverflowError):
        if _NUMERIC.match(text) or _WORDED.search(text):
            return dateutil.parser.parse(text, dayfirst=order == "day_first", default=_DEFAULT)
    plain = text.replace("/", "-")
    for written in (plain, _SINGLE.sub(r"0\1", plain)):
        for read in (float, datetime.fromisoformat, time_of_day.fromisoformat):
            with contextlib.suppress(ValueError):
                return read(written)
    remedy = "cannot be compared: neither a number nor a date or time (2026-01-31 09:05); fix or leave turn.time out"
    raise DataError(place, time, remedy)
