"""The option `group`: dialogues with one value in a column are in one split, whatever the input is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hamr.cli import main as hamr
from hamr.data.columns import check_column, group_meta, value_at
from hamr.data.samples import read_samples
from hamr.errors import DataError

ROW = {"a.b": 1, "a": {"b": 2, "c": [{"d": 3}]}, "n": None}


def test_value_at_a_path() -> None:
    assert (value_at(ROW, "a.b"), value_at(ROW, "a.c"), value_at(ROW, "a.x"), value_at(ROW, "n.x")) == (
        1, [{"d": 3}], None, None,
    )  # fmt: skip


def test_group_is_a_digest_of_any_value() -> None:
    groups = [group_meta({"k": value}, "k") for value in ("ann@example.org", 7, "7", [1], {"x": 1})]
    assert len({group["group"] for group in groups}) == 4, "7 is the same as '7'"
    assert "ann" not in groups[0]["group"]
    assert group_meta({"k": " Ann@Example.org "}, "k") == groups[0] and group_meta({"k": "7 "}, "k") == groups[1]
    assert group_meta({"k": "a"}, "k") != group_meta({"k": "A"}, "k"), "ids may differ in case"
    assert (
        group_meta({"k": " \t"}, "k")
        == group_meta({"k": ""}, "k")
        == group_meta({}, "k")
        == group_meta({"k": 1}, None)
        == {}
    )


def test_unknown_column_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(DataError, match="group: 'customer': t.jsonl has no such column; did you mean 'customers'"):
        check_column("group", "customer", [{"customers": 1}, {"id": 2}], "t.jsonl")
    check_column("group", "n", [{}, ROW], "t.jsonl")
    check_column("group", "x", [], "t.jsonl")


def chats(folder: Path) -> Path:
    rows = [
        {
            "customer": {"no": i // 3},
            "messages": [{"role": "user", "content": f"Wish {i}"}, {"role": "assistant", "content": "Yes."}],
        }
        for i in range(12)
    ]
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder / "chats.jsonl"


def split_of(folder: Path) -> dict[str, str]:
    return {
        sample.history[0].content: name
        for name in ("train", "validation", "test")
        for sample in read_samples(folder / f"{name}.jsonl")
    }


def test_chats_of_one_customer_are_in_one_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["data", "import", "messages", f"input={chats(tmp_path)}", f"output={tmp_path / 'out'}"]
    assert hamr([*given, "group=customer.no"]) == 0
    splits = split_of(tmp_path / "out")
    for customer in range(4):
        assert len({splits[f"Wish {i}"] for i in range(3 * customer, 3 * customer + 3)}) == 1
    assert hamr([*given, "group=customer.number", "overwrite=true"]) == 2
    assert "group: 'customer.number': chats.jsonl has no such column" in capsys.readouterr().err


def test_customer_in_two_splits_of_the_input_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    rows = chats(tmp_path).read_text().splitlines()
    (folder / "train.jsonl").write_text("\n".join(rows[:10]))  # the last customer has three dialogues
    (folder / "test.jsonl").write_text("\n".join(rows[10:]))
    given = ["data", "import", "messages", f"input={folder}", f"output={tmp_path / 'out'}"]
    assert hamr([*given, "group=customer.no"]) == 2
    error = capsys.readouterr().err
    assert "data.test: group: " in error and "'test-1-1' has the group of 'train-10-1' in data.train" in error
    assert hamr([*given, "group=customer.no", "overwrite=true", "split=false"]) == 0
    assert hamr([*given, "overwrite=true"]) == 0


@pytest.mark.parametrize(
    ("corpus", "row", "policies"),
    [
        (
            "abcd",
            {"policy_ref": "p", "tools_ref": ["t"], "ticket": {}},
            {"policies": {"p": {"text": "Be kind."}}, "tools": {"t": {}}},
        ),
        (
            "tau2",
            {"policy_ref": "p", "tools_ref": [], "reward": 1.0, "source": {"task_id": 1}},
            {"policies": {"p": {"text": "Be kind."}}, "tools": {}},
        ),
    ],
)
def test_corpus_is_grouped_by_a_column(tmp_path: Path, corpus: str, row: Any, policies: Any) -> None:
    said = [{"role": "customer", "content": "Hello"}]
    rows = [
        {
            **row,
            "id": str(i),
            "history": said,
            "gold": {"action": "reply", "content": f"Hi {i}"},
            "messages": [*said, {"role": "agent", "content": f"Hi {i}"}],
            "source": {**row.get("source", {}), "convo_id": i, "worker": i % 2},
        }
        for i in range(4)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "policies.json").write_text(json.dumps(policies))
    words = [f"input={tmp_path / 'rows.jsonl'}", f"policies={tmp_path / 'policies.json'}", "group=source.worker"]
    assert hamr(["data", "import", corpus, *words, f"output={tmp_path / 'out'}", "split=false"]) == 0
    found = read_samples(tmp_path / "out" / "train.jsonl")
    assert len({sample.meta["group"] for sample in found}) == 2
    assert hamr(["data", "import", corpus, *words, f"output={tmp_path / 'o2'}", "split=false", "pii=hide"]) == 0
    assert len({sample.meta["group"] for sample in read_samples(tmp_path / "o2" / "train.jsonl")}) == 2
