"""Reading finished responses: samples with one text or several, every fault by file, line and field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hamr.errors import BadInput, DataError
from hamr.jobs.score import finished, main, read_responses

ROW = {
    "id": "a",
    "ticket": {},
    "policy": "",
    "tools": [],
    "history": [{"role": "customer", "content": "hi"}],
    "references": [{"action": "reply", "content": "Hello!"}],
}


def written(tmp_path: Path, *rows: dict) -> Path:
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_one_response_or_several(tmp_path: Path) -> None:
    path = written(tmp_path, {**ROW, "response": "Hey."}, {**ROW, "id": "b", "responses": ["x", "y"]})
    rows = read_responses(path)
    assert [(sample.id, responses) for sample, responses in rows] == [("a", ("Hey.",)), ("b", ("x", "y"))]
    keys = {finished("run", sample, i, text).key for sample, responses in rows for i, text in enumerate(responses)}
    assert len(keys) == 3


@pytest.mark.parametrize("field", [{}, {"response": 3}, {"responses": []}, {"responses": "text"}])
def test_a_line_without_a_response_is_named(tmp_path: Path, field: dict) -> None:
    path = written(tmp_path, {**ROW, "response": "ok"}, {**ROW, **field})
    with pytest.raises(DataError, match=r"r\.jsonl:2: response"):
        read_responses(path)


def test_input_and_output_have_to_be_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="input"):
        main([])
    with pytest.raises(BadInput, match="output"):
        main([f"input={written(tmp_path, {**ROW, 'response': 'ok'})}"])
