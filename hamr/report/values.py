"""Contents of a report as values: tables, figures and text in sections of a page.

An application builds these values once; `hamr.report.terminal` prints them, and `hamr.report.html` writes a page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

NOTHING = "-"
"""Text of a cell without a value."""


@dataclass(frozen=True)
class Interval:
    """A mean with the bounds of its interval; None where unknown."""

    mean: float | None
    low: float | None = None
    high: float | None = None

    @classmethod
    def of(cls, figure: Mapping[str, Any], scale: float = 1.0) -> Interval:
        """Read the `mean`, `low` and `high` of a metric, multiplied by `scale`."""
        mean, low, high = (figure.get(key) for key in ("mean", "low", "high"))
        return cls(*(None if value is None else scale * value for value in (mean, low, high)))


@dataclass(frozen=True)
class Prose:
    """Text of any length with a remark below it."""

    text: str
    remark: str = ""


@dataclass(frozen=True)
class Tag:
    """A word in a coloured box."""

    text: str
    tone: Literal["good", "bad", "neutral"] = "neutral"


@dataclass(frozen=True)
class Link:
    """A link to a file, relative to the page."""

    text: str
    href: str


@dataclass(frozen=True)
class Parts:
    """Named values in [-1, 1] with a bar each, and a remark; None is a failed part."""

    values: Mapping[str, float | None]
    remark: str = ""


Cell: TypeAlias = str | int | float | Interval | Prose | Tag | Link | Parts | None


@dataclass(frozen=True)
class Column:
    """A column of a table. A column with a format, such as `{:.2f}`, has numbers and is aligned to the right."""

    name: str
    form: str = ""
    description: str = ""

    @property
    def align(self) -> Literal["left", "right"]:
        return "right" if self.form else "left"

    def lines(self, cell: Cell) -> tuple[str, ...]:
        """Return the text of a cell; further lines are less important.

        >>> Column("score", "{:.2f}").lines(Interval(0.5, 0.25, 0.75))
        ('0.50', '0.25–0.75')
        """
        match cell:
            case None:
                return (NOTHING,)
            case Interval():
                mean = self._number(cell.mean)
                if cell.low is None or cell.high is None:
                    return (mean,)
                between = " to " if cell.low < 0 or "+" in self.form else "–"
                return mean, f"{self._number(cell.low)}{between}{self._number(cell.high)}"
            case Prose():
                return (cell.text, cell.remark) if cell.remark else (cell.text,)
            case Tag() | Link():
                return (cell.text,)
            case Parts():
                parts = (f"{name} {format_value(value, missing='failed')}" for name, value in cell.values.items())
                return (*parts, cell.remark) if cell.remark else tuple(parts)
            case str():
                return (cell,)
            case _:
                return (self._number(cell),)

    def _number(self, value: float | None) -> str:
        return format_value(value, self.form or "{}", missing=NOTHING)


def number_columns(form: str, *names: str) -> tuple[Column, ...]:
    return tuple(Column(name, form) for name in names)


def format_value(value: float | None, form: str = "{:.2f}", *, missing: str) -> str:
    return missing if value is None else form.format(value)


@dataclass(frozen=True)
class Table:
    """Rows of cells under their columns. `head=False` hides the names of the columns; `half` takes half the page."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    head: bool = True
    half: bool = False

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r} has {len(self.columns)} columns but a row of {len(row)} cells")

    @classmethod
    def pairs(cls, title: str, pairs: Mapping[str, Cell]) -> Table:
        """Return a table of names and values without a head, half a page wide."""
        return cls(title, (Column("name"), Column("value")), tuple(pairs.items()), head=False, half=True)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A drawing: SVG with the page's colours, and the same as PNG for `plots/<name>.png`.

    Attributes:
        png: None for a figure that is on a page only.
        alt: Text for readers who do not see the drawing.
        least_width: Width in CSS pixels below which its smallest text would be hard to read.
    """

    name: str
    title: str
    caption: str
    alt: str
    svg: str
    png: bytes | None
    least_width: int
    wide: bool = False


@dataclass(frozen=True)
class Paragraph:
    text: str


@dataclass(frozen=True)
class Code:
    """Preformatted text; only on the page."""

    text: str


@dataclass(frozen=True, kw_only=True)
class Headline:
    """An important number: its last value, its change, and the values that led to it."""

    title: str
    value: str
    change: str = ""
    tone: Literal["good", "bad", "same"] = "same"
    path: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Headlines:
    items: tuple[Headline, ...]


@dataclass(frozen=True)
class Fold:
    """Blocks that the page shows on request."""

    title: str
    blocks: tuple[PageBlock, ...]


PageBlock: TypeAlias = Table | Figure | Paragraph | Code | Headlines | Fold


@dataclass(frozen=True)
class PageSection:
    """Blocks under a title. Details are shown on the page but not in the terminal."""

    title: str
    blocks: tuple[PageBlock, ...]
    lead: str = ""
    detail: bool = False

    @classmethod
    def of(cls, title: str, *blocks: PageBlock | None, lead: str = "", detail: bool = False) -> PageSection:
        """Return a section of the blocks that there are: not None, and no table without rows."""
        kept = tuple(b for b in blocks if b is not None and not (isinstance(b, Table) and not b.rows))
        return cls(title, kept, lead, detail)


@dataclass(frozen=True, kw_only=True)
class Page:
    """A report. `summary` is its result in one or two sentences; `facts` are short remarks on its origin."""

    title: str
    summary: str
    facts: tuple[str, ...]
    sections: tuple[PageSection, ...]

    @property
    def filled_sections(self) -> tuple[PageSection, ...]:
        return tuple(section for section in self.sections if section.blocks)

    def figures(self) -> Iterator[Figure]:
        """Yield all figures, also those in folds."""
        yield from _figures(block for section in self.sections for block in section.blocks)


def _figures(blocks: Iterator[PageBlock]) -> Iterator[Figure]:
    for block in blocks:
        if isinstance(block, Figure):
            yield block
        elif isinstance(block, Fold):
            yield from _figures(iter(block.blocks))
