"""Tables of exports: detected encodings and delimiters, JSON arrays, and the line of every fault."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hamr.data.tables import ExportTable, read_table
from hamr.data.times import date_order
from hamr.errors import DataError

GERMAN = "id;von;text\r\n1;Kunde;Können Sie mir die Rechnung für März schicken?\r\n1;Agent;Ja, gern.\r\n"
CHINESE = "编号\t角色\t内容\n1\t客户\t我要退款\n1\t客服\t请稍等\n"
PLAIN = 'id|who|text\n1|a|"two\nlines, one | bar"\n2|b|x\n'


def read(folder: Path, raw: bytes, name: str = "t.csv", **options: str) -> ExportTable:
    (folder / name).write_bytes(raw)
    return read_table(folder / name, **options)


@pytest.mark.parametrize(
    ("raw", "form", "column", "value"),
    [
        (GERMAN.encode("cp1252"), "CSV, delimiter semicolon, encoding cp1252 (it contains 'Können')", "von", "Kunde"),
        (GERMAN.encode("utf-8-sig"), "CSV, delimiter semicolon, encoding utf-8-sig", "id", "1"),
        (GERMAN.encode("utf-16"), "CSV, delimiter semicolon, encoding utf-16", "id", "1"),
        (CHINESE.encode("gbk"), "CSV, delimiter tab, encoding gb18030 (it contains '编号')", "内容", "我要退款"),
        (CHINESE.encode(), "CSV, delimiter tab, encoding utf-8", "角色", "客户"),
        (PLAIN.encode(), "CSV, delimiter pipe, encoding utf-8", "text", "two\nlines, one | bar"),
        (b"sep=;\r\nid;text\r\n1;Hi, you\r\n", "CSV, delimiter semicolon, encoding utf-8", "text", "Hi, you"),
        (b"text\nHi; you\n", "CSV, delimiter comma, encoding utf-8", "text", "Hi; you"),
        (b'"id","a;b"\n1,Hi\n', "CSV, delimiter comma, encoding utf-8", "a;b", "Hi"),
        (b"id;a, b;text\n1;2;Hi\n", "CSV, delimiter semicolon, encoding utf-8", "a, b", "2"),
        (b'id\t"a, ""b"", c"\ttext\n1\t2\tHi\n', "CSV, delimiter tab, encoding utf-8", 'a, "b", c', "2"),
        (b'"a, ""b""\n, c";id;text\n1;2;Hi\n', "CSV, delimiter semicolon, encoding utf-8", 'a, "b"\n, c', "1"),
        (b'5" screen;id\n"1,2,3";4\n', "CSV, delimiter semicolon, encoding utf-8", '5" screen', "1,2,3"),
        (b"id;text;\n1;Hi;;\n", "CSV, delimiter semicolon, encoding utf-8", "text", "Hi"),
        (b"id;text\n1;Hi;\n", "CSV, delimiter semicolon, encoding utf-8", "text", "Hi"),
    ],
)
def test_csv_delimiter_and_encoding_are_detected_and_stated(
    tmp_path: Path, raw: bytes, form: str, column: str, value: str
) -> None:
    table = read(tmp_path, raw)
    assert table.form == form
    assert table.rows[0][1][column] == value


def test_rows_have_their_line_in_the_file(tmp_path: Path) -> None:
    assert [line for line, _ in read(tmp_path, PLAIN.encode()).rows] == [2, 4]
    assert [line for line, _ in read(tmp_path, b'"i\nd",text\n\n1,"a\rb\r\nc"\n2,b\n').rows] == [4, 7]
    assert [line for line, _ in read(tmp_path, b"sep=;\nid;text\n1;a\n2;b\n").rows] == [3, 4]
    array = '[\n {"id": 1},\n\n {"id": 2,\n  "a": [3]}, {"id": 4}]'
    table = read(tmp_path, array.encode("utf-8-sig"), "t.json")
    assert table.rows == [(2, {"id": 1}), (4, {"id": 2, "a": [3]}), (5, {"id": 4})]
    assert table.form == "a JSON array"


def test_rows_with_too_few_fields_are_named(tmp_path: Path) -> None:
    table = read(tmp_path, b"sep=;\nid;who;text\n1;a;one\ntwo\n2;a;\n")
    assert (table.rows[1], table.short) == ((4, {"id": "two", "who": None, "text": None}), {4})


def test_lines_of_another_encoding_are_named(tmp_path: Path) -> None:
    """As cp1252, the other lines would be garbled."""
    rows = ["id;text", *(f"{i};Größe {i}" for i in range(20))]
    lines = [row.encode("cp1252" if i in (7, 9) else "utf-8") for i, row in enumerate(rows)]
    remedy = "is not UTF-8, unlike other lines; save it as UTF-8, or give encoding=<name> for the whole file (1 more)"
    with pytest.raises(DataError, match=rf"t.csv:8: line: b'6;Gr.*: {re.escape(remedy)}$"):
        read(tmp_path, b"\n".join(lines))


def test_given_options_replace_detection(tmp_path: Path) -> None:
    table = read(tmp_path, "a;b,c\n1;ß,2\n".encode("cp850"), encoding="cp850", delimiter=",")
    assert table.rows == [(2, {"a;b": "1;ß", "c": "2"})]
    assert read(tmp_path, '{"a": "ß"}'.encode("cp850"), "t.jsonl", encoding="cp850").rows == [(1, {"a": "ß"})]


def test_tsv_is_delimited_by_tabs(tmp_path: Path) -> None:
    table = read(tmp_path, b"id\ttext, a, b\n1\tHi\n", "t.tsv")
    assert (table.rows, table.form) == ([(2, {"id": "1", "text, a, b": "Hi"})], "CSV, delimiter tab, encoding utf-8")
    assert read(tmp_path, b"id;text\n1;Hi\n", "t.tsv", delimiter=";").rows == [(2, {"id": "1", "text": "Hi"})]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_byte_order_mark_sets_the_encoding_of_json(tmp_path: Path, encoding: str) -> None:
    lines = '{"a": "ß"}\n{"a": "好"}\n'
    assert read(tmp_path, lines.encode(encoding), "t.jsonl").rows == [(1, {"a": "ß"}), (2, {"a": "好"})]
    assert read(tmp_path, '[{"a": "ß"}]'.encode(encoding), "t.json").rows == [(1, {"a": "ß"})]


def test_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    assert read(tmp_path, GERMAN.encode("utf-8-sig"), encoding="utf-8").rows[0][1]["id"] == "1"


def test_json_lines_array_and_single_object_are_read(tmp_path: Path) -> None:
    rows = [{"id": 1}, {"id": 2}]
    lines = "\n".join(map(json.dumps, rows)).encode()
    for name in ("t.json", "t.jsonl"):
        assert [row for _, row in read(tmp_path, lines, name).rows] == rows
        assert [row for _, row in read(tmp_path, json.dumps(rows).encode(), name).rows] == rows
    assert read(tmp_path, json.dumps(rows[0], indent=1).encode(), "t.json").rows == [(1, rows[0])]


def test_arrays_one_after_another_are_read(tmp_path: Path) -> None:
    """As pages of an API are saved."""
    pages = b'[{"id": 1},\n {"id": 2}]\n\n [{"id": 3}]\n[]\n'
    assert read(tmp_path, pages, "t.json").rows == [(1, {"id": 1}), (2, {"id": 2}), (4, {"id": 3})]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32"])
def test_wide_characters_are_detected(tmp_path: Path, encoding: str) -> None:
    assert read(tmp_path, GERMAN.encode(encoding)).rows[0][1]["id"] == "1"
    assert read(tmp_path, '{"id": "ä"}\n'.encode(encoding), "t.jsonl").rows == [(1, {"id": "ä"})]


def test_non_object_element_is_reported_with_its_line(tmp_path: Path) -> None:
    table = read(tmp_path, b'[{"a": 1},\n 7,\n {"a": NaN}, {"a": 2}]', "t.json")
    assert [row for _, row in table.rows] == [{"a": 1}, {"a": 2}]
    assert [fault.message.removeprefix(f"{tmp_path}/") for fault in table.faults] == [
        "t.json:2: line: 7: must be a JSON object",
        "t.json:3: line: '{\"a\": NaN}': bad JSON (NaN is not JSON); write one JSON object per line",
    ]


@pytest.mark.parametrize(
    ("name", "raw", "options", "said"),
    [
        ("t.csv", b"a,b,a\n1,2,3\n", {}, "t.csv:1: header: 'a': two columns have this name; rename one"),
        ("t.csv", b"a,b\n1,2\n1,2,3\n", {}, "t.csv:3: line: ['3']: the line has more fields than the header's 2"),
        ("t.csv", b'a,b\n"1\n1",2\n1,"2\n2",3\n', {}, "t.csv:4: line: ['3']: the line has more fields than"),
        ("t.csv", b"a,b\n1,\xfc\n", {"encoding": "utf-8"}, "t.csv:2: line: b'1,\\xfc': is not utf-8; give encoding="),
        ("t.csv", b"a,b\n1,\xff\xff\x81\x98\n", {}, "its encoding is neither UTF-8 nor cp1252, gb18030"),
        (
            "t.csv",
            b'a,b\n1,2\n3,"4\n5,6\n',
            {},
            "t.csv:3: line: '3,\"4': cannot be read as CSV (unexpected end of data)",
        ),
        ("t.csv", b'a,b\n1,"2 \\" 3"\n', {}, "write a quote inside a quoted text twice"),
        ("t.csv", b'sep=;\na;b\n1;"2"3\n', {}, "t.csv:3: line: '1;\"2\"3': cannot be read as CSV"),
        ("t.json", b'[{"a": 1},\n {"a": }]', {}, "t.json:2: line: '{\"a\": }]': bad JSON"),
        ("t.json", b'[{"a": 1}', {}, "t.json:1: line: '': bad JSON"),
        ("t.json", b'[{"a": 1}\n]\n{"a": 2}', {}, "t.json:3: line: '{\"a\": 2}': text after the end of the array"),
        ("t.json", b'["\xfc"]', {}, "is not UTF-8; save the file as UTF-8, or give encoding=<name>"),
    ],
)
def test_unreadable_file_is_refused_with_its_line(
    tmp_path: Path, name: str, raw: bytes, options: dict[str, str], said: str
) -> None:
    with pytest.raises(DataError) as refused:
        read(tmp_path, raw, name, **options)
    assert said in str(refused.value)


def test_whole_column_decides_order_of_day_and_month() -> None:
    early, late = ("f:2", "01/02/2026"), ("f:9", "31/01/2026")
    assert date_order("at", [early, late]) == "day_first"
    assert date_order("at", [early, ("f:9", "01/31/2026")]) == "month_first"
    assert date_order("at", [("f:2", "2026-01-02"), ("f:3", "7"), ("f:4", None), ("f:5", "03/03/2026")]) is None
    assert date_order("at", [early], "month_first") == "month_first"
    with pytest.raises(DataError, match="f:2: at: '01/02/2026': no date of the column tells day from month"):
        date_order("at", [early])
    with pytest.raises(DataError, match="f:9: at: '31/01/2026': contradicts dates=month_first"):
        date_order("at", [early, late], "month_first")
    with pytest.raises(DataError, match="f:9: at: '31/01/2026': has the day first, but that of f:3 the month"):
        date_order("at", [early, ("f:3", "01/31/2026"), late])


def test_bytes_of_parquet_are_read_as_text(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(
        pyarrow.table({"text": pyarrow.array(["für".encode()], pyarrow.binary())}), tmp_path / "t.parquet"
    )
    assert read_table(tmp_path / "t.parquet").rows == [(1, {"text": "für"})]
