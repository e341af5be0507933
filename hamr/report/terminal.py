"""Terminal renderer of report values. A table that is too wide is split, with its first column repeated."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text as RichText

from hamr.report.values import Column, Headlines, Page, PageBlock, Paragraph, Table

WIDTH = 80
"""Characters in a line of a log."""
_PROSE = (60, 30, 15)
"""Widths at which columns of text are wrapped, the next where the one before leaves too little space."""
_PADDING = 3
"""Characters between two columns; the first has two before it, the last two after it."""


def show(*parts: Page | PageBlock, console: Console | None = None) -> None:
    """Print pages and blocks. Figures, code and folded blocks are on the page only."""
    console = console or Console()
    for part in parts:
        for rendered in _render(part, console.width):
            console.print(rendered, highlight=False, soft_wrap=isinstance(rendered, RichText))


def _render(part: Page | PageBlock, width: int) -> Iterator[RenderableType]:
    match part:
        case Page():
            for section in part.filled_sections:
                if not section.detail:
                    for block in section.blocks:
                        yield from _render(block, width)
        case Table():
            yield from tables(part, width)
            if part.note:
                yield Padding(RichText(part.note, style="dim"), (0, 0, 1, 2))
        case Paragraph():
            yield RichText(part.text)
        case Headlines():
            for item in part.items:
                yield RichText(f"{item.title}: {item.value} {item.change}".rstrip())


def tables(table: Table, width: int) -> Iterator[RichTable]:
    """Yield one rich table, or several where the columns do not fit into `width` characters."""
    cells = [[column.lines(cell) for column, cell in zip(table.columns, row, strict=True)] for row in table.rows]
    every = list(range(len(table.columns)))
    for prose in _PROSE:
        needed = [_width(table.columns[i], [row[i] for row in cells], prose) for i in every]
        if fits := 1 + sum(w + _PADDING for w in needed) <= width:
            break
    groups = [every] if fits else _split(needed, width)
    plain = fits and 1 + sum(max(needed[i], len(table.columns[i].name)) + _PADDING for i in every) <= width
    for part, group in enumerate(groups):
        made = RichTable(
            title=RichText(table.title) if table.title and not part else None,
            title_justify="left",
            box=SIMPLE_HEAD,
            show_header=table.head,
        )
        for i in group:
            column = table.columns[i]
            name = column.name if plain else "\n".join(textwrap.wrap(column.name, needed[i]))
            made.add_column(RichText(name), justify=column.align, overflow="fold")
        for row in cells:
            made.add_row(*(RichText("\n".join(row[i])) for i in group))
        yield made


def _width(column: Column, cells: Sequence[Sequence[str]], prose: int) -> int:
    """Return the width of a column, with its name in about two lines and text wrapped at `prose`, but not in words."""
    lines = [line for cell in cells for text in cell for line in text.splitlines()]
    longest, word = (max(map(len, parts), default=0) for parts in (lines, " ".join(lines).split()))
    head = max((len(column.name) + 1) // 2, *map(len, column.name.split()), 1)
    return max(head, longest if column.form else min(longest, max(prose, min(word, 2 * prose))))


def _split(needed: Sequence[int], width: int) -> list[list[int]]:
    """Return the columns of each part; each starts with column 0."""
    groups, used = [[0]], 1 + needed[0] + _PADDING
    for i, more in enumerate(needed[1:], start=1):
        if used + more + _PADDING > width and len(groups[-1]) > 1:
            groups.append([0])
            used = 1 + needed[0] + _PADDING
        groups[-1].append(i)
        used += more + _PADDING
    return groups
