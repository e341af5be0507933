"""Chats in the forms of other trainers, from files and from folders of `datasets`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hamr.cli import main as hamr
from hamr.data.importers import widen
from hamr.data.samples import read_samples
from hamr.data.tickets import read_chats
from hamr.data.trajectories import Trajectory
from hamr.errors import DataError
from hamr.types import ToolCall, Turn

ASKED = Turn(role="customer", content="Where is order 7?")
CALLED = Turn(role="agent", tool_call=ToolCall(name="find", parameters={"order": 7}))
RESULT = Turn(role="tool", name="find", content="sent")
ANSWERED = Turn(role="agent", content="It was sent.")
SYSTEM = {"role": "system", "content": "Be kind."}
USER = {"role": "user", "content": "Where is order 7?"}
ASSISTANT = {"role": "assistant", "content": "It was sent."}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "a", "function": {"name": "find", "arguments": {"order": 7}}}],
}
TOOL = {"role": "tool", "tool_call_id": "a", "content": "sent"}
SHAREGPT = [
    {"from": "human", "value": "Where is order 7?"},
    {"from": "function_call", "value": '{"name": "find", "arguments": {"order": 7}}'},
    {"from": "observation", "value": "sent"},
    {"from": "gpt", "value": "It was sent."},
]
FORMS: list[tuple[str, dict[str, Any], tuple[Turn, ...]]] = [
    ("messages", {"messages": [SYSTEM, USER, CALL, TOOL, ASSISTANT]}, (ASKED, CALLED, RESULT, ANSWERED)),
    (
        "sharegpt",
        {"system": "Be kind.", "conversations": SHAREGPT},
        (ASKED, CALLED, RESULT, ANSWERED),
    ),
    ("trl", {"prompt": [SYSTEM, USER], "completion": [ASSISTANT]}, (ASKED, ANSWERED)),
    ("trl", {"prompt": "Where is order 7?", "completion": "It was sent."}, (ASKED, ANSWERED)),
    (
        "verl",
        {
            "data_source": "own",
            "prompt": [SYSTEM, USER],
            "reward_model": {"style": "rule", "ground_truth": "It was sent."},
        },
        (ASKED, ANSWERED),
    ),
]


def read(path: Path) -> list[Trajectory]:
    return list(read_chats(path, hide=False).trajectories)


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


@pytest.mark.parametrize(("form", "row", "turns"), FORMS)
@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet"])
def test_forms_are_detected_in_every_file_format(
    tmp_path: Path, form: str, row: dict[str, Any], turns: tuple[Turn, ...], ending: str
) -> None:
    path = tmp_path / f"t.{ending}"
    if ending == "parquet":
        write_parquet(path, [row])
    else:
        path.write_text(json.dumps(row if ending == "jsonl" else [row]))
    (found,) = read(path)
    assert found.turns == turns
    assert found.meta["dataset"] == form
    assert found.policy == ("" if row.get("prompt") == "Where is order 7?" else "Be kind.")


def call(arguments: str) -> dict[str, Any]:
    return {"messages": [USER, {**CALL, "tool_calls": [{"function": {"name": "find", "arguments": arguments}}]}]}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text": "x"}, "t.jsonl:1: messages: ['text']: must have lists of messages or conversations, prompt"),
        (
            {"conversations": [{"from": "robot", "value": "x"}]},
            "t.jsonl:1: conversations[0].from: 'robot': unknown role",
        ),
        (
            {"conversations": [{"from": "function_call", "value": "find()"}]},
            "conversations[0].value: 'find()': the call is",
        ),
        ({"conversations": [{"from": ["human"], "value": "x"}]}, "conversations[0].from: ['human']: unknown role"),
        ({"messages": json.dumps([USER, ASSISTANT])}, "must have lists of messages or conversations, prompt and"),
        ({"messages": [USER, ASSISTANT], "tools": 3}, "t.jsonl:1: tools: 3: must be a list"),
        ({"messages": [USER, ASSISTANT], "tools": '{"a": 1}'}, "t.jsonl:1: tools: {'a': 1}: must be a list"),
        ({"conversations": ["x"]}, "t.jsonl:1: conversations[0]: 'x': must be an object"),
        ({"prompt": [USER], "reward_model": {"ground_truth": 7}}, "reward_model.ground_truth: 7: must be the right"),
        ({"prompt": [{"role": "user", "content": 7}], "completion": "x"}, "t.jsonl:1: prompt[0].content: 7"),
        ({"messages": [USER, ASSISTANT], "tools": "["}, "t.jsonl:1: tools: '[': bad JSON"),
        (
            call('{"x": NaN}'),
            "t.jsonl:1: messages[1].tool_calls[0].arguments: '{\"x\": NaN}': are not JSON (NaN is not JSON)",
        ),
        (call('{"x": 1e999}'), "are not JSON (1e999 is out of range)"),
        ([], "contains no line; give chats"),
    ],
)
def test_malformed_chat_is_refused_with_its_place(tmp_path: Path, row: Any, said: str) -> None:
    (tmp_path / "t.jsonl").write_text(json.dumps(row))
    with pytest.raises(DataError) as refused:
        read(tmp_path / "t.jsonl")
    assert said in str(refused.value)


def test_id_zero_is_an_id(tmp_path: Path) -> None:
    rows = [{"id": number, "messages": [{**USER, "content": f"Wish {number}"}, ASSISTANT]} for number in (0, 1)]
    (tmp_path / "t.json").write_text(json.dumps(rows))
    assert [found.id for found in read(tmp_path / "t.json")] == ["0", "1"]


def test_older_function_call_becomes_a_call(tmp_path: Path) -> None:
    called = {"role": "assistant", "content": None, "function_call": {"name": "find", "arguments": '{"order": 7}'}}
    row = {"messages": [USER, called, {"role": "function", "name": "find", "content": "sent"}, ASSISTANT]}
    (tmp_path / "t.jsonl").write_text(json.dumps(row))
    assert read(tmp_path / "t.jsonl")[0].turns == (ASKED, CALLED, RESULT, ANSWERED)


def results_of(folder: Path, *messages: dict[str, Any]) -> list[tuple[str | None, str]]:
    (folder / "t.jsonl").write_text(json.dumps({"messages": [USER, *messages, ASSISTANT]}))
    return [(turn.name, turn.content) for turn in read(folder / "t.jsonl")[0].turns if turn.role == "tool"]


def calling(*names: str, **ids: str) -> dict[str, Any]:
    called = [{"function": {"name": name, "arguments": {}}, **({"id": ids[name]} if ids else {})} for name in names]
    return {"role": "assistant", "content": None, "tool_calls": called}


def test_older_functions_are_the_tools(tmp_path: Path) -> None:
    find = {"name": "find", "description": "Find it.", "parameters": {"type": "object"}}
    for key in ("functions", "tools"):
        (tmp_path / "t.jsonl").write_text(json.dumps({"messages": [USER, CALL, TOOL, ASSISTANT], key: [find]}))
        assert read(tmp_path / "t.jsonl")[0].tools == (find,)


def test_parts_of_anthropic_become_calls_and_results(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"order": {"type": "integer"}}}
    thought, text = {"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "Let me see."}
    used = {"type": "tool_use", "id": "a", "name": "find", "input": {"order": 7}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "sent"}]}
    for said in ([thought, text], [thought]):
        messages = [
            USER,
            {"role": "assistant", "content": [*said, used]},
            {"role": "user", "content": [result, {"type": "text", "text": "And?"}]},
            {"role": "assistant", "content": [thought, {"type": "text", "text": "It was sent."}]},
        ]
        row = {"messages": messages, "tools": [{"name": "find", "input_schema": schema}]}
        (tmp_path / "t.jsonl").write_text(json.dumps(row))
        (found,) = read(tmp_path / "t.jsonl")
        spoken = (Turn(role="agent", content="Let me see."),) if text in said else ()
        assert found.turns == (ASKED, *spoken, CALLED, RESULT, Turn(role="customer", content="And?"), ANSWERED)
        assert found.tools == ({"name": "find", "parameters": schema},)


def test_number_that_becomes_an_alias_fits_its_tool(tmp_path: Path) -> None:
    """The calls of both tools have a long number: one tool is listed, the other is derived from its calls."""
    integer = {"type": "integer", "description": "Its number."}
    schema = {"type": "object", "properties": {"parcel": integer, "n": {"type": "integer"}}, "required": ["parcel"]}
    listed = {"type": "function", "function": {"name": "track", "parameters": schema}}
    calls = [
        {"name": "track", "arguments": {"parcel": 98765430, "n": 3}},
        {"name": "look", "arguments": {"parcel": 98765430}},
    ]
    messages = [USER, {"role": "assistant", "tool_calls": calls}, {"role": "user", "content": "Thank you."}, ASSISTANT]
    (tmp_path / "t.jsonl").write_text(json.dumps({"messages": messages, "tools": [listed]}))
    (found,) = read_chats(tmp_path / "t.jsonl").trajectories
    assert [turn.tool_call.parameters["parcel"] for turn in found.turns if turn.tool_call] == ["[NUMBER_1]"] * 2
    track, look = found.tools
    either = {"description": "Its number.", "anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert track["function"]["parameters"] == {**schema, "properties": {**schema["properties"], "parcel": either}}
    assert look["parameters"]["properties"] == {"parcel": {"anyOf": [{"type": "string"}]}}
    assert read_chats(tmp_path / "t.jsonl", hide=False).trajectories[0].tools[0] == listed


def test_tools_of_many_chats_are_derived_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tool for every chat would look at the calls of all chats each time."""
    made = []
    monkeypatch.setattr(
        widen, "slot_tool", lambda name, *_: made.append(name) or {"name": name, "parameters": {"type": "object"}}
    )
    rows = [{"messages": [{**USER, "content": f"Order {i}?"}, CALL, TOOL, ASSISTANT]} for i in range(9)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert len(read(tmp_path / "t.jsonl")) == 9
    assert made == ["find", "find"], "from the calls before and after hiding"


def test_results_without_ids_have_the_order_of_the_calls(tmp_path: Path) -> None:
    first, second = {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}
    assert results_of(tmp_path, calling("a", "b"), first, second) == [("a", "1"), ("b", "2")]
    assert results_of(tmp_path, calling("a"), calling("b"), first, second) == [("a", "1"), ("b", "2")]
    named = {**first, "name": "b"}
    assert results_of(tmp_path, calling("a", "b"), named, second) == [("b", "1"), ("a", "2")]
    assert results_of(tmp_path, calling("a"), ASSISTANT, USER, calling("b"), second) == [("b", "2")]


def test_results_with_ids_have_the_order_of_the_calls(tmp_path: Path) -> None:
    first, second = ({"role": "tool", "tool_call_id": key, "content": key} for key in "xy")
    assert results_of(tmp_path, calling("a", "b", a="x", b="y"), second, first) == [("a", "x"), ("b", "y")]
    same = {"role": "assistant", "tool_calls": [{"id": key, "function": {"name": "a"}} for key in "xy"]}
    assert results_of(tmp_path, same, second, first) == [("a", "x"), ("a", "y")]
    assert results_of(tmp_path, calling("a", a="x"), second | {"tool_call_id": "x"}, USER, same, second, first) == [
        ("a", "y"), ("a", "x"), ("a", "y"),
    ]  # fmt: skip


def test_calls_without_result_are_counted(tmp_path: Path) -> None:
    called, late = calling("a", "b", a="x", b="y"), {"role": "tool", "tool_call_id": "y", "content": "2"}
    ending = [USER, calling("a", a="z")]  # a dialogue may end with a call
    found = read_chats(write_chats(tmp_path, [USER, called, late, *ending], [USER, called, USER, ASSISTANT]))
    assert found.form == "messages, 3 tool calls have no result"
    assert read_chats(write_chats(tmp_path, [USER, calling("b", b="y"), late, *ending])).form == "messages"


@pytest.mark.parametrize("results", ["z", "xx"])
def test_result_whose_id_has_no_waiting_call_is_refused(tmp_path: Path, results: str) -> None:
    messages = [{"role": "tool", "tool_call_id": key, "content": "1"} for key in results]
    with pytest.raises(DataError, match=r"tool_call_id: '[xz]': no call before it waits for it"):
        results_of(tmp_path, calling("a", a="x"), *messages)


def write_chats(folder: Path, *chats: list[dict[str, Any]]) -> Path:
    path = folder / "t.jsonl"
    path.write_text("\n".join(json.dumps({"messages": messages}) for messages in chats))
    return path


def test_system_message_inside_the_dialogue_is_refused(tmp_path: Path) -> None:
    blank = {"role": "system", "content": ""}
    (found,) = read(write_chats(tmp_path, [SYSTEM, SYSTEM, USER, ASSISTANT, blank]))
    assert found.policy == "Be kind.\nBe kind.\n"
    with pytest.raises(DataError, match=r"messages\[2\]: 'Be kind.': a system message inside the dialogue"):
        read(write_chats(tmp_path, [USER, ASSISTANT, SYSTEM, USER, ASSISTANT]))


def test_system_text_beside_the_messages_is_the_policy(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    parts = [{"type": "text", "text": "Be kind."}]
    path.write_text(json.dumps({"system": parts, "messages": [USER, ASSISTANT]}))
    assert read(path)[0].policy == "Be kind."
    path.write_text(json.dumps({"system": "Be kind.", "messages": [USER, ASSISTANT, {"role": "clerk"}]}))
    with pytest.raises(DataError, match=r"messages\[2\].role: 'clerk'"):
        read(path)


def test_message_with_weight_zero_is_history_only(tmp_path: Path) -> None:
    bad = {"role": "assistant", "content": "Go away.", "weight": 0}
    path = write_chats(tmp_path, [USER, bad, USER, {**ASSISTANT, "weight": 1}])
    (sample,) = read_chats(path, hide=False).samples
    assert [turn.content for turn in sample.history] == [USER["content"], "Go away.", USER["content"]]
    called = {"from": "function_call", "value": '{"name": "find", "arguments": {"order": 7}}', "weight": 0}
    path.write_text(json.dumps({"conversations": [SHAREGPT[0], called, *SHAREGPT[2:]]}))
    assert [sample.id for sample in read_chats(path, hide=False).samples] == ["1-3"]
    with pytest.raises(DataError, match=r"messages\[1\].weight: 0.5: must be 0"):
        read(write_chats(tmp_path, [USER, {**bad, "weight": 0.5}]))


def test_parts_without_text_are_counted(tmp_path: Path) -> None:
    image, text = {"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "What is this?"}
    asked, blank = {"role": "user", "content": [image, text, image]}, {"role": "assistant", "content": " "}
    found = read_chats(write_chats(tmp_path, [asked, ASSISTANT, blank]))
    assert [turn.content for turn in found.trajectories[0].turns] == ["What is this?", "It was sent."]
    assert (found.form, found.blank) == ("messages, 2 images and other parts without text dropped", 1)
    with pytest.raises(DataError, match=r"messages\[0\].content: .* has no text; images and other parts cannot"):
        read(write_chats(tmp_path, [{"role": "user", "content": [image]}, ASSISTANT]))


def test_faulty_chats_are_left_out_and_reported(tmp_path: Path) -> None:
    path = write_chats(tmp_path, [USER, ASSISTANT], [USER], [{**USER, "content": ""}, ASSISTANT], [7], [USER, SYSTEM])
    path.write_bytes(path.read_bytes() + b'\n{"messages": \n{"messages": "\xfc"}')
    found = read_chats(path)
    assert [made.id for made in found.trajectories] == ["1"]
    assert [fault.message.removeprefix(f"{path}:")[:40] for fault in found.faults] == [
        "2: turns: ['customer']: no turn of the a",
        "3: turns: ['agent']: no turn of the cust",
        "4: messages[0]: 7: must be an object wit",
        "5: messages[1]: 'Be kind.': a system mes",
        "6: line: '{\"messages\":': bad JSON (Expec",
        '7: line: b\'{"messages": "\\xfc"}\': is not',
    ]
    assert found.faults[-1].message.endswith("is not UTF-8; save the file as UTF-8")


def test_private_values_of_faulty_chats_are_hidden(tmp_path: Path) -> None:
    path = write_chats(tmp_path, [USER, ASSISTANT], [{**USER, "content": "I am mia@example.com"}])
    (fault,) = read_chats(path).faults
    assert "[EMAIL_1]" in str(fault.row) and "mia@" not in str(fault.row)
    assert "mia@" in str(read_chats(path, hide=False).faults)


def test_file_without_a_valid_chat_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="none of them is valid; the first: .*no turn of the agent"):
        read_chats(write_chats(tmp_path, [USER]))
    (tmp_path / "t.json").write_text('[{"messages": [}]')
    with pytest.raises(DataError, match="bad JSON"):
        read_chats(tmp_path / "t.json")
    (tmp_path / "t.json").write_bytes(b'[{"a": "\xfc"}]')
    with pytest.raises(DataError, match="is not UTF-8; save the file as UTF-8$"):
        read_chats(tmp_path / "t.json")


def test_same_dialogue_under_another_policy_is_no_duplicate(tmp_path: Path) -> None:
    found = read_chats(write_chats(tmp_path, [USER, ASSISTANT], [SYSTEM, USER, ASSISTANT], [USER, ASSISTANT]))
    assert ([made.id for made in found.trajectories], found.duplicates) == (["1", "2"], ("3",))


def test_folder_without_tables_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="contains no .jsonl, .ndjson, .json, .parquet, .arrow"):
        read(tmp_path / "empty")


def chats(first: int, n: int) -> list[dict[str, Any]]:
    return [{"messages": [{"role": "user", "content": f"Wish {i}"}, ASSISTANT]} for i in range(first, first + n)]


def test_data_set_folder_keeps_its_splits(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    write_parquet(folder / "data" / "train-00000-of-00002.parquet", chats(0, 4))
    write_parquet(folder / "data" / "train-00001-of-00002.parquet", chats(4, 4))
    write_parquet(folder / "data" / "test-00000-of-00001.parquet", chats(8, 3))
    (folder / "dataset_infos.json").write_text("{}")
    out = tmp_path / "out"
    assert hamr(["data", "import", "messages", f"input={folder}", f"output={out}"]) == 0
    asked = {
        name: {s.history[0].content for s in read_samples(out / f"{name}.jsonl")}
        for name in ("train", "validation", "test")
    }
    assert asked["test"] == {"Wish 8", "Wish 9", "Wish 10"}
    assert (len(asked["train"]), len(asked["validation"])) == (7, 1)


def test_folder_is_read_whole_whatever_its_name(tmp_path: Path) -> None:
    """A split is named by a file or by a folder inside."""
    folder = tmp_path / "my-test"
    folder.mkdir()
    for name, first in (("a.jsonl", 0), ("b.ndjson", 2)):
        (folder / name).write_text("\n".join(map(json.dumps, chats(first, 2))) + "\n")
    found = read(folder)
    assert [t.turns[0].content for t in found] == ["Wish 0", "Wish 1", "Wish 2", "Wish 3"]
    assert all("split" not in t.meta for t in found)
    (folder / "c.jsonl.gz").write_bytes(b"")
    with pytest.raises(DataError, match=r"c\.jsonl\.gz': is compressed; decompress it"):
        read(folder)


def test_refusal_is_the_text_of_a_message(tmp_path: Path) -> None:
    refused = {"role": "assistant", "content": None, "refusal": "I cannot help with that."}
    parts = {"role": "assistant", "content": [{"type": "refusal", "refusal": "Nor with this."}]}
    (found,) = read(write_chats(tmp_path, [USER, refused, USER, parts]))
    assert [turn.content for turn in found.turns if turn.role == "agent"] == [
        "I cannot help with that.",
        "Nor with this.",
    ]


def test_tool_whose_name_is_no_text_is_one_faulty_line(tmp_path: Path) -> None:
    path = write_chats(tmp_path, [USER, ASSISTANT])
    odd = {"messages": [USER, ASSISTANT], "tools": [{"name": {"en": "find"}, "parameters": {}}]}
    path.write_text(path.read_text().rstrip("\n") + "\n" + json.dumps(odd) + "\n")
    found = read_chats(path)
    assert [made.id for made in found.trajectories] == ["1"] and [fault.line for fault in found.faults] == [2]


def test_job_writes_left_out_chats_with_their_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_chats(tmp_path, *(chat["messages"] for chat in chats(0, 5)), [USER])
    out = tmp_path / "out"
    assert hamr(["data", "import", "messages", f"input={path}", f"output={out}"]) == 0
    assert f"left out: {path}:6: turns: ['customer']: no turn of the agent" in capsys.readouterr().out
    assert [json.loads(line)["line"] for line in (out / "rejected.jsonl").read_text().splitlines()] == [6]
    report = json.loads((out / "report.json").read_text())
    assert (report["left out"], report["read as"]) == ({"faulty": 1, "duplicates": 0}, "messages")


def test_folder_saved_by_datasets_is_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    for split, rows in (("train", chats(0, 3)), ("validation", chats(3, 1))):
        (tmp_path / split).mkdir()
        table = pyarrow.Table.from_pylist(rows)
        with pyarrow.ipc.new_stream(tmp_path / split / "data-00000-of-00001.arrow", table.schema) as file:
            file.write_table(table)
        (tmp_path / split / "state.json").write_text("{}")
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "validation"]}')
    assert [(t.turns[0].content, t.meta["split"]) for t in read(tmp_path)] == [
        ("Wish 0", "train"), ("Wish 1", "train"), ("Wish 2", "train"), ("Wish 3", "validation"),
    ]  # fmt: skip
