"""Content of the documentation site that is made when it is built: an mkdocs hook (see `hooks` in mkdocs.yml).

A line `<!-- build: NAME -->` of a page is replaced by generated text: `commands`, `configuration` or `metrics`. A line
`<!-- include: PATH -->` is replaced by a file of the repository without its title, with links adapted to the site.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
MARK = re.compile(r"^<!-- (build|include): (\S+) -->$", re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\((?!\w+:|#)([^)\s#]*)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Expand the marks of a page. Called by mkdocs."""
    return expand(markdown, DOCS / page.file.src_uri)


def on_post_page(output: str, **_: Any) -> str:
    """Name the search dialog for screen readers. Called by mkdocs."""
    return output.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )


def expand(text: str, page: Path) -> str:
    """Return the text of the file `page` with all marks replaced."""

    def replace(mark: re.Match[str]) -> str:
        kind, name = mark.groups()
        return GENERATED[name]() if kind == "build" else include(ROOT / name, page)

    return MARK.sub(replace, text)


def include(file: Path, page: Path) -> str:
    """Return a file without its title. A link to a page of the site is kept, any other becomes its text."""
    places = included_files()

    def relink(link: re.Match[str]) -> str:
        text, path, heading = link.groups()
        target = places.get((file.parent / path).resolve(), (file.parent / path).resolve())
        if not target.is_relative_to(DOCS):
            return text
        return f"[{text}]({os.path.relpath(target, page.parent)}{heading or ''})"

    return LINK.sub(relink, re.sub(r"\A# .*\n", "", file.read_text(encoding="utf-8")))


def included_files() -> dict[Path, Path]:
    """Return {file of the repository: the page that includes it}."""
    return {
        ROOT / mark[2]: page
        for page in DOCS.rglob("*.md")
        for mark in MARK.finditer(page.read_text(encoding="utf-8"))
        if mark[1] == "include"
    }


def commands() -> str:
    """Return the help of every command."""
    return "\n".join(f"## hamr {name}\n\n```text\n{text}\n```\n" for name, text in command_help())


def command_help() -> Iterator[tuple[str, str]]:
    """Yield (command, its help)."""
    from hamr.apps.jobs import JOBS
    from hamr.apps.shared.commands import help_text

    for path in JOBS:
        yield path, help_text(path)


def configuration() -> str:
    """Return one heading and one table for each section of the configuration."""
    from hamr.config.explain import section_of
    from hamr.config.reference import entries
    from hamr.config.schema import Config

    rows: dict[str, list[str]] = {name: [] for name in Config.model_fields}
    for e in entries():
        default = f"`{e.default}`" if e.default else "required"
        rows[e.key.partition(".")[0]].append(row(f"`{e.key}`", e.type, default, e.meaning))
    sections = []
    for name, info in Config.model_fields.items():
        about = inspect.cleandoc(vars(section_of(info.annotation)[0]).get("__doc__") or "")
        table = [row("key", "type", "default", "meaning"), "|---|---|---|---|", *rows[name]]
        sections.append("\n".join([f"## {name}", "", about, "", *table, ""]))
    return "\n".join(sections)


def metrics() -> str:
    """Return one heading and one table for each section of the glossary."""
    from hamr.telemetry.glossary import BETTER, METRICS

    _, *lines = (ROOT / "hamr" / "telemetry" / "glossary.txt").read_text(encoding="utf-8").splitlines()
    found, sections = iter(METRICS), list[list[str]]()
    for line in lines:
        if line.startswith("# "):
            title, about = split_title(line.removeprefix("# "))
            table = [row("metric", "meaning", "unit", "better"), "|---|---|---|---|"]
            sections.append([f"## {title}", "", *([about, ""] if about else []), *table])
        elif line:
            m = next(found)
            sections[-1].append(row(f"`{m.pattern}`", m.meaning, m.unit or "-", BETTER[m.good]))
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def split_title(text: str) -> tuple[str, str]:
    """Return the title of a section of the glossary and the sentence after it.

    >>> split_title("Groups, stale ones included")
    ('Groups', 'Stale ones included.')
    """
    title, _, about = re.sub(r"[:,;] | (?=\()", "\n", text, count=1).partition("\n")
    about = re.sub(r"^\((.*)\)$", r"\1", about.rstrip(".")).replace("<", "&lt;")
    return title, f"{about[:1].upper()}{about[1:]}." if about else ""


def row(*cells: str) -> str:
    """Return a row of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


GENERATED: dict[str, Callable[[], str]] = {"commands": commands, "configuration": configuration, "metrics": metrics}
