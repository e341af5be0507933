"""The examples in docstrings give the results that they show."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import hamr

ROOT = Path(hamr.__file__).parent.parent
MODULES = [
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for file in sorted((ROOT / "hamr").rglob("*.py"))
    if ">>> " in file.read_text()
]


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples_give_the_results_shown(module):
    results = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert not results.failed
