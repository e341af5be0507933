"""Imports of docs/how-to/data.md run as written, on the page's own files."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import yaml

from hamr import cli
from tests.docs_pages import DOCS, commands, save_files

PAGE = DOCS / "how-to" / "data.md"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_files(PAGE, tmp_path)
    return tmp_path


def run(start: str) -> list[str]:
    """Run the page's commands that begin so."""
    chosen = [command for command in commands(PAGE) if command.startswith(start)]
    assert chosen
    for command in chosen:
        assert cli.main(shlex.split(command)[1:]) == 0
    return chosen


def meta(folder: str) -> list[dict[str, str]]:
    rows = "".join(path.read_text() for path in Path(folder).glob("t*.jsonl") if path.stem != "trajectories")
    return [json.loads(line)["meta"] for line in rows.splitlines()]


def test_preview_proposes_the_mapping_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    run("hamr data import tickets --preview")
    assert yaml.safe_load(capsys.readouterr().out) == yaml.safe_load(Path("map.yaml").read_text())


def test_tickets_are_grouped_by_the_mapping_or_the_option() -> None:
    assert len(run("hamr data import tickets input=")) == 2
    assert len({row["group"] for row in meta("data/tickets")}) <= 3
    groups = [row["group"] for row in meta("data/products")]
    assert (len(groups), len(set(groups))) == (4, 2)
