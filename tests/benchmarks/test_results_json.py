"""The format of results files."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.results_json import results_text, write_results

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
bodies = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=40)


@given(bodies)
def test_results_read_back_unchanged(body: object) -> None:
    assert json.loads(results_text(body)) == body


def test_numbers_share_a_line_and_long_texts_do_not(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    write_results(file, {"items": [0.25] * 60, "runs": {"long": "a" * 100, "replies": ["b" * 40, "c" * 40]}})
    assert file.read_text().splitlines() == [
        "{",
        f' "items": [{", ".join(["0.25"] * 60)}],',
        ' "runs": {',
        f'  "long": "{"a" * 100}",',
        f'  "replies": ["{"b" * 40}", "{"c" * 40}"]',
        " }",
        "}",
    ]
