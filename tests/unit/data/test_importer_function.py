"""Samples from a function of the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from hamr.apps.shared.preparation import load_splits
from hamr.config.load import load_config
from hamr.errors import ConfigError, DataError

ROWS = """
def rows(n=20, first=0):
    for i in range(first, first + n):
        yield {"id": f"s{i}", "ticket": {}, "policy": "Help.", "tools": [],
               "history": [{"role": "customer", "content": f"Question {i}?"}],
               "references": [{"action": "reply", "content": f"Answer {i}."}]}
"""


def load(folder: Path, text: str, *more: str) -> list[str]:
    (folder / "my.py").write_text(ROWS + text)
    config = load_config(["experiment=quickstart", f"data.importer.path={folder}/my.py:f", *more])
    splits = load_splits(config.data, 0)
    return sorted(s.id for split in (splits.train, splits.validation, splits.test) for s in split)


def test_importer_replaces_the_data_of_an_experiment(tmp_path: Path) -> None:
    assert load(tmp_path, "f = rows") == sorted(f"s{i}" for i in range(20))
    assert load(tmp_path, "f = rows", "data.importer.kwargs={n: 9, first: 5}") == sorted(f"s{i}" for i in range(5, 14))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("f = 3", "is not a function but 3"),
        ("g = rows", "no such function; "),
        ("def f(): return 'text'", r"returned 'text' \(str\); yield objects of the sample format"),
        ("def f(): return []", "yielded no sample"),
        ("def f():\n    yield from rows(2)\n    raise OSError('lost')", r"raised OSError: lost \(.*my.py, line 9\)"),
        ("def f(a): return rows()", r"cannot be called as f\(\)"),
    ],
)
def test_function_that_yields_no_samples_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        load(tmp_path, text)
    assert error.value.where == "data.importer.path" and error.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(): yield from rows(2); yield {'id': 'x'}", "my.py:f: sample 3"),
        ("def f(): yield from rows(2); yield from rows(1)", "my.py:f: sample 3: id: 's0': already used"),
        ("def f(): yield 5", "my.py:f: sample 1"),
    ],
)
def test_invalid_sample_is_named_by_its_number(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(tmp_path, text)


def test_type_importer_requires_a_function() -> None:
    with pytest.raises(ConfigError, match=r"set data\.importer\.path"):
        load_config(["experiment=quickstart", "data.type=importer"])


def test_function_that_sleeps_for_ever_is_rejected(tmp_path: Path) -> None:
    text = "import time\n\ndef f():\n    time.sleep(600)\n    yield {}\n"
    with pytest.raises(ConfigError, match=r"^data.importer.path: .* did not return within 0.3 s"):
        load(tmp_path, text, "data.importer.deadline_s=0.3")
