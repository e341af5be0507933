"""Code blocks and commands of the documentation, for the tests that run them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TUTORIALS = sorted((DOCS / "tutorials").glob("[0-9]*.md"))
FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^    +(hamr .*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block. `title` is the file that the page asks the reader to save it as."""

    language: str
    title: str
    text: str


def blocks(page: Path, language: str | None = None) -> list[Block]:
    found = [Block(language=lang, title=title, text=text) for lang, title, text in FENCE.findall(page.read_text())]
    return [block for block in found if language is None or block.language == language]


def commands(page: Path) -> list[str]:
    """Return every line `hamr ...` of the page's code, without comments."""
    lines = [line for block in blocks(page) if block.language in ("", "bash") for line in block.text.splitlines()]
    lines += INDENTED.findall(FENCE.sub("", page.read_text()))
    return [shlex.join(shlex.split(line, comments=True)) for line in lines if line.strip().startswith("hamr ")]


def documented(page: str, part: str, given: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Return the words after `hamr` of the only command of docs/<page> that contains `part`.

    `given` has the reader's values for the page's placeholders and addresses.
    """
    [command] = [command for command in commands(DOCS / page) if part in command]
    words = shlex.split(command)[1:]
    for name, value in given.items():
        words = [word.replace(name, value) for word in words]
    return words


def save_files(page: Path, folder: Path) -> None:
    """Write every block that has a title into the folder, under its title."""
    for block in blocks(page):
        if block.title:
            path = folder / block.title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)


def run_python(page: Path, number: int = 0) -> dict[str, Any]:
    """Run the page's block of Python with this number in the working folder, and return its variables."""
    names: dict[str, Any] = {}
    exec(compile(blocks(page, "python")[number].text, f"{page.name}, block {number}", "exec"), names)
    return names
