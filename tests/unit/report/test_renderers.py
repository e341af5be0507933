"""Report values on a page and in a terminal."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from hamr.report.drawing import GREY, PALETTE, axes, draw
from hamr.report.html import RELOAD, render_page, write_page
from hamr.report.terminal import show
from hamr.report.values import (
    Code,
    Column,
    Figure,
    Fold,
    Headline,
    Headlines,
    Interval,
    Link,
    Page,
    PageBlock,
    PageSection,
    Paragraph,
    Parts,
    Prose,
    Table,
    Tag,
)

SCORES = Table(
    "Scores",
    (Column("policy"), Column("score", "{:.2f}", "higher is better"), Column("change", "{:+.2f}")),
    (("a<b>", Interval(0.5, 0.25, 0.75), Interval(-0.1, -0.2, 0.1)), ("c", None, 0.25)),
    note="A note.",
)


def page_of(*blocks: PageBlock) -> Page:
    return Page(title="A title", summary="A result.", facts=("one", "two"), sections=(PageSection.of("Part", *blocks),))


def drawing(colour: str = GREY) -> Figure:
    def make():
        figure, ax = axes((4, 3))
        ax.plot([0, 1], [0, 1], color=colour)
        ax.set_xlabel("step")
        return figure

    figure = draw("a/b", "A figure", make, caption="Its caption.")
    assert figure is not None
    return figure


def printed(*parts: Page | PageBlock, width: int = 80) -> str:
    screen = io.StringIO()
    show(*parts, console=Console(file=screen, width=width))
    return screen.getvalue()


def test_table_has_the_same_numbers_on_page_and_terminal() -> None:
    html, text = render_page(page_of(SCORES)), printed(SCORES)
    for value in ("0.50", "0.25–0.75", "-0.10", "-0.20 to +0.10", "+0.25", "A note."):
        assert value in html and value in text
    assert '<th scope="col" class="right">score</th>' in html and "<b>score</b>: higher is better." in html


def test_lone_surrogates_in_a_page_are_replaced(tmp_path: Path) -> None:
    assert "退?款" in write_page(page_of(Paragraph("退\ud800款")), tmp_path).read_text(encoding="utf-8")


def test_text_is_escaped_and_secrets_are_redacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOO_API_KEY", "canary-7f3a")
    report = write_page(page_of(SCORES, Code("key canary-7f3a"), Paragraph("<script>")), tmp_path).read_text()
    assert "a&lt;b&gt;" in report and "&lt;script&gt;" in report and "<script" not in report
    assert "canary" not in report


def test_figure_is_inline_svg_and_a_png_file(tmp_path: Path) -> None:
    report = write_page(page_of(Fold("More", (drawing(),))), tmp_path).read_text()
    assert report.count("<svg ") == 1
    drawn = report[report.index("<svg ") : report.index("</svg>")]
    assert "var(--grey)" in drawn and GREY not in drawn
    assert 'role="img" aria-label="Plot: A figure. Its caption."' in report
    assert (tmp_path / "plots" / "a_b.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert not re.search(r"<link|<script|@import|url\((?!#)|https?://", report)


def test_every_colour_has_light_and_dark_values() -> None:
    html = render_page(page_of(SCORES))
    light, dark = html.split("prefers-color-scheme: dark")
    for name, (of_light, of_dark) in PALETTE.items():
        assert f"--{name}: {of_light};" in light and f"--{name}: {of_dark};" in dark


def test_only_a_live_page_reloads() -> None:
    assert RELOAD in render_page(page_of(SCORES), live=True)
    assert RELOAD not in render_page(page_of(SCORES))


def test_cells_of_every_kind_are_shown() -> None:
    columns = tuple(Column(name) for name in ("text", "tag", "link", "parts"))
    cells = (Prose("Hello.", "a remark"), Tag("best", "good"), Link("stage", "01/report.html"), Parts({"cost": -0.5}))
    headlines = Headlines(
        (Headline(title="Reward", value="0.5", change="+0.1", tone="good", path=(("before", "0.4"),)),)
    )
    blocks = (Table("", columns, (cells,)), headlines)
    html, text = render_page(page_of(*blocks)), printed(*blocks)
    assert '<a href="01/report.html">stage</a>' in html and '<span class="tag good">best</span>' in html
    assert '<i class="minus" style="width: 50%">' in html and '<div class="change good">+0.1</div>' in html
    for value in ("Hello.", "a remark", "best", "stage", "cost -0.50", "Reward: 0.5 +0.1"):
        assert value in text


def test_empty_sections_are_omitted_and_details_are_not_printed() -> None:
    empty = Table("Nothing", (Column("a"),), ())
    sections = (PageSection.of("Empty", empty, None), PageSection.of("Detail", SCORES, detail=True))
    page = Page(title="t", summary="s", facts=(), sections=sections)
    assert [section.title for section in page.filled_sections] == ["Detail"]
    assert "Empty" not in render_page(page) and "Detail" in render_page(page)
    assert printed(page) == ""


def test_a_wide_table_is_split_and_repeats_its_first_column() -> None:
    names = [f"metric {i}" for i in range(12)]
    row = ("policy", *(i + 0.125 for i in range(12)))
    wide = Table("Wide", (Column("name"), *(Column(name, "{:.3f}") for name in names)), (row,))
    text = printed(wide, width=60)
    assert max(map(len, text.splitlines())) <= 60
    assert text.count("policy") > 1 and "11.125" in text and "..." not in text and "…" not in text


def test_long_text_wraps_within_the_terminal() -> None:
    table = Table("", (Column("who"), Column("text")), (("customer", Prose("word " * 60)),))
    text = printed(table, width=60)
    assert max(map(len, text.splitlines())) <= 60 and text.count("word") == 60


def test_row_of_the_wrong_length_raises_an_error() -> None:
    with pytest.raises(ValueError, match="table 'x' has 1 columns but a row of 2 cells"):
        Table("x", (Column("a"),), (("b", "c"),))
