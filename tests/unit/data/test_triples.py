"""Score triples from three file formats, and every error by file, line and field."""

from __future__ import annotations

import json

import pytest

from hamr.data.triples import read_triples
from hamr.errors import DataError

ROWS = [{"s_r": 0.25, "s_j": 1, "y": 0.5, "id": "a"}, {"s_r": 0.0, "s_j": 0.125, "y": 1.0, "id": "b"}]


def jsonl(path, rows=ROWS):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def csv(path, rows=ROWS):
    lines = [",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def parquet(path, rows=ROWS):
    table = pytest.importorskip("pyarrow").Table.from_pylist(rows)
    pytest.importorskip("pyarrow.parquet").write_table(table, path)
    return path


@pytest.mark.parametrize("write", [jsonl, csv, parquet])
def test_all_file_formats_give_the_same_triples(tmp_path, write):
    triples = read_triples(write(tmp_path / f"t.{write.__name__}"), {})
    assert (triples.s_r, triples.s_j, triples.y, triples.hard) == ([0.25, 0.0], [1.0, 0.125], [0.5, 1.0], None)


@pytest.mark.parametrize("write", [jsonl, csv, parquet])
def test_column_names_and_hard_verdicts_are_configurable(tmp_path, write):
    rows = [{"rr": 0.5, "judge": 0.75, "teacher": 1.0, "hard": 0.5}]
    names = {"s_r": "rr", "s_j": "judge", "y": "teacher"}
    path = write(tmp_path / f"t.{write.__name__}", rows)
    triples = read_triples(path, names)
    assert (triples.s_r, triples.hard) == ([0.5], [0.5])
    assert list(triples.rows()) == [{"s_r": 0.5, "s_j": 0.75, "y": 1.0, "hard": 0.5}]
    with pytest.raises(DataError, match="verdict.*missing field"):
        read_triples(path, names | {"hard": "verdict"})


def test_spreadsheet_csv_has_decimal_commas_spaces_and_empty_rows(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("s_r ; s_j; y\n0,5130;1;0.25\n;;\n ; ;\n0,5;0;1,0\n;;\n")
    triples = read_triples(path, {})
    assert (triples.s_r, triples.s_j, triples.y) == ([0.513, 0.5], [1.0, 0.0], [0.25, 1.0])
    path.write_text("s_r,s_j,y\n,,\n")
    with pytest.raises(DataError, match="contains no rows"):
        read_triples(path, {})
    path.write_text('s_r,s_j,y\n"0,5",1,1\n')
    with pytest.raises(DataError, match=r"t.csv:2: s_r: '0,5': must be a number"):
        read_triples(path, {})


def test_triples_survive_the_file_round_trip(tmp_path):
    first = read_triples(jsonl(tmp_path / "a.jsonl"), {})
    assert read_triples(jsonl(tmp_path / "b.jsonl", list(first.rows())), {}) == first


@pytest.mark.parametrize(
    ("write", "value", "says"),
    [
        (jsonl, 1.5, r"t.jsonl:2: y: 1.5: is not a score"),
        (jsonl, "high", r"t.jsonl:2: y: 'high': must be a number"),
        (jsonl, None, r"t.jsonl:2: y: None: must be a number"),
        (jsonl, True, r"t.jsonl:2: y: True: must be a number"),
        (jsonl, float("nan"), r"t.jsonl:2: line: .*NaN is not JSON"),
        (csv, "nan", r"t.csv:3: y: 'nan': is not a score"),
        (csv, "", r"t.csv:3: y: '': must be a number"),
        (csv, "-1e-9", r"t.csv:3: y: '-1e-9': is not a score"),
        (parquet, 7.0, r"t.parquet:2: y: 7.0: is not a score"),
    ],
)
def test_invalid_value_names_line_and_field(tmp_path, write, value, says):
    rows = [ROWS[0], {**ROWS[1], "y": value}]
    with pytest.raises(DataError, match=says):
        read_triples(write(tmp_path / f"t.{write.__name__}", rows), {})


def test_a_missing_field_is_named(tmp_path):
    with pytest.raises(DataError, match=r"t.csv:2: s_j: .*missing field"):
        read_triples(csv(tmp_path / "t.csv", [{"s_r": 0.5, "y": 0.5}]), {})
    (tmp_path / "short.csv").write_text("s_r,s_j,y\n0.5,0.5\n")
    with pytest.raises(DataError, match=r"short.csv:2: y: None: must be a number"):
        read_triples(tmp_path / "short.csv", {})


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("none.jsonl", None, "no such file"),
        ("t.xlsx", b"x", "scores: .*t.xlsx.: must end in .jsonl"),
        ("empty.csv", b"s_r,s_j,y\n", "contains no rows"),
        ("empty.jsonl", b"", "contains no rows"),
        ("list.jsonl", b"[1]\n", "must be a JSON object"),
        ("long.csv", b"s_r,s_j,y\n1,1,1,1\n", "more fields than the header"),
        ("no.parquet", b"not parquet", "is not a Parquet file"),
    ],
)
def test_invalid_file_is_named(tmp_path, name, content, says):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=says):
        read_triples(tmp_path / name, {})
