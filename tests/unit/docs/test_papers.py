"""The tables of docs/papers: every row names a test or a command that exists."""

from __future__ import annotations

import re

import pytest

from hamr import cli
from tests.docs_pages import DOCS, ROOT

PAGES = {"hybrid-reward": "H", "olamind": "O", "sage": "S"}
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows(page: str) -> list[list[str]]:
    text = (DOCS / "papers" / f"{page}.md").read_text()
    lines = [line for line in text.splitlines() if re.match(r"\| [HOS]\d", line)]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


@pytest.mark.parametrize("page", PAGES)
def test_rows_are_complete_and_numbered_once(page: str) -> None:
    table = rows(page)
    assert all(len(row) == 5 and all(row) for row in table)
    numbers = [row[0] for row in table]
    assert numbers == [f"{PAGES[page]}{n:02}" for n in range(1, len(numbers) + 1)]
    assert all(re.match(r"works$|works; its figure needs: |partial: |missing: ", row[4]) for row in table)


@pytest.mark.parametrize("page", PAGES)
def test_checks_exist(page: str) -> None:
    for number, _, _, check, state in rows(page):
        named = TEST.findall(check)
        commands = re.findall(r"`hamr (\w+)", check)
        assert state.startswith("missing") or named or commands, f"{number}: neither a test nor a command"
        assert set(commands) <= set(cli.JOBS), number
        for file, function in named:
            assert re.search(rf"^(?:async )?def {function}\(", (ROOT / file).read_text(), re.MULTILINE), (number, file)
