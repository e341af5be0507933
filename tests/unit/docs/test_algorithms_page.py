"""The table of algorithms: its rows are the choices of `algorithm`, and its switches are what they set."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml

from hamr.config.load import load_config
from hamr.config.resources import resource
from tests.docs_pages import DOCS, commands

PAGE = DOCS / "concepts" / "algorithms.md"
CHOICES = {file.stem: file for file in resource("conf", "algorithm").glob("*.yaml")}
CELLS = {
    cells[0].strip(" `"): cells
    for line in PAGE.read_text().split("| `algorithm=` |")[1].splitlines()[2:]
    if line.startswith("| `") and len(cells := line.strip("|").split(" | ")) == 7
}
ROWS = {name: dict(re.findall(r"`([\w.]+)=([^`]+)`", cells[3])) for name, cells in CELLS.items()}


def test_table_has_every_choice() -> None:
    assert ROWS.keys() == CHOICES.keys()


@pytest.mark.parametrize("name", ROWS)
def test_switches_are_those_of_the_choice(name: str) -> None:
    tree = yaml.safe_load(CHOICES[name].read_text())
    tree = tree.get("algorithm", tree)
    assert tree["name"] == name and ROWS[name]
    for key, value in ROWS[name].items():
        *sections, leaf = key.split(".")
        section = tree
        for part in sections:
            section = section[part]
        assert section[leaf] == yaml.safe_load(value), key


@pytest.mark.parametrize("name", CELLS)
def test_columns_of_switches_are_those_of_the_choice(name: str) -> None:
    algorithm = load_config([f"algorithm={name}"]).algorithm
    assert float(CELLS[name][4]) == algorithm.entropy_coef
    assert (CELLS[name][5] == "on") == algorithm.dynamic_sampling.enabled


@pytest.mark.parametrize("command", [c for c in commands(PAGE) if "algorithm" in c])
def test_documented_command_sets_what_it_names(command: str) -> None:
    overrides = shlex.split(command)[2:]
    config = load_config(overrides)
    chosen = dict(text.split("=", 1) for text in overrides)
    assert config.algorithm.name == chosen.get("algorithm", "dapo")
    assert config.rewards.normalise == ("gdpo" if config.algorithm.name == "gdpo" else "sum")
