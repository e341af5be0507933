"""Ticket exports through a mapping: three file formats, errors by line, aliases, and the command around it."""

from __future__ import annotations

import csv
import json
import math
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from hamr.cli import main as hamr
from hamr.config.tickets import TicketMapping
from hamr.data.hiding import without_pii
from hamr.data.pii import Aliases
from hamr.data.samples import read_samples
from hamr.data.tickets import read_mapping, read_tickets
from hamr.data.trajectories import read_trajectories, trajectory_from_json
from hamr.errors import ConfigError, DataError
from hamr.types import Reply, ToolCall, Turn

MAPPING = """
id: ticket_no
turns: messages
ticket: {product: product, tier: customer.tier}
privileged: {ticket_summary: resolution}
policy: {text: "Look the order up before you promise anything."}
turn:
  role: from
  content: text
  roles: {customer: [client], agent: [staff], tool: [system]}
  call: {name: tool, parameters: args}
  tool: tool
  time: at
"""
PHONE = "13812345678"


def turns(*, phone: str = PHONE) -> list[dict[str, Any]]:
    return [
        {"from": "client", "text": f"Where is my order? My phone is {phone}.", "at": 1},
        {"from": "staff", "text": "One moment.", "tool": "find_order", "args": json.dumps({"phone": phone}), "at": 2},
        {"from": "system", "text": '{"state": "sent"}', "tool": "find_order", "at": 3},
        {"from": "staff", "text": "", "at": 4},
        {"from": "staff", "text": f"It was sent. We write to mia@example.com or {phone}.", "at": 5},
    ]


def ticket(number: str = "T1", said: Any = None, **columns: Any) -> dict[str, Any]:
    return {
        "ticket_no": number, "product": "shop", "customer": {"tier": "gold"}, "resolution": "Order sent.",
        "messages": turns() if said is None else said, **columns,
    }  # fmt: skip


def export(folder: Path, *rows: Any, mapping: str = MAPPING) -> tuple[Path, Path]:
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    (folder / "t.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "map.yaml").write_text(mapping, encoding="utf-8")
    return folder / "t.jsonl", folder / "map.yaml"


def read(folder: Path, *rows: Any, mapping: str = MAPPING, hide: bool = True):
    path, described = export(folder, *rows, mapping=mapping)
    return read_tickets(path, read_mapping(described), folder=folder, hide=hide)


def test_ticket_becomes_turns_with_aliases(tmp_path: Path) -> None:
    found = read(tmp_path, ticket())
    (made,) = found.trajectories
    assert made.turns == (
        Turn(role="customer", content="Where is my order? My phone is [PHONE_1]."),
        Turn(role="agent", content="One moment."),
        Turn(role="agent", tool_call=ToolCall(name="find_order", parameters={"phone": "[PHONE_1]"})),
        Turn(role="tool", name="find_order", content='{"state": "sent"}'),
        Turn(role="agent", content="It was sent. We write to [EMAIL_1] or [PHONE_1]."),
    )
    assert made.ticket == {"product": "shop", "tier": "gold"}
    assert made.privileged == {"ticket_summary": "Order sent.", "pii": {"[PHONE_1]": PHONE}}, "no call needs the e-mail"
    assert made.policy.startswith("Look the order up")
    assert [tool["name"] for tool in made.tools] == ["find_order"]
    assert (found.hidden, found.blank, found.faults) == ({"phone": 1, "email": 1}, 1, ())


def test_private_values_are_kept_if_configured(tmp_path: Path) -> None:
    (made,) = read(tmp_path, ticket(), hide=False).trajectories
    assert made.turns[2].tool_call == ToolCall(name="find_order", parameters={"phone": PHONE})
    assert "pii" not in made.privileged


def test_turns_with_a_skipped_value_are_left_out(tmp_path: Path) -> None:
    said = [{**turn, "private": i == 4} for i, turn in enumerate(turns())]
    said.insert(0, {"from": "robot", "text": "Chat opened.", "private": False})
    mapping = MAPPING + '  skip: {private: ["true"], from: [robot]}\n'
    (made,) = read(tmp_path, ticket(said=said), mapping=mapping).trajectories
    assert [turn.role for turn in made.turns] == ["customer", "agent", "agent", "tool"]
    with pytest.raises(
        DataError, match=r"turn.skip.privat: 'privat': t.jsonl has no such column; did you mean 'private'"
    ):
        read(tmp_path, ticket(said=said), mapping=mapping.replace("private", "privat"))


def test_csv_rows_with_one_id_form_a_ticket(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [
        ("A", "user", "Hallo, 我要退款", "", ""),
        ("B", "user", "Hi", "", ""),
        ("A", "agent", "请稍等。", "refund", '{"order": 7}'),
        ("B", "agent", "Hello!", "", ""),
    ]
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("no", "who", "said", "tool", "args"), *rows])
    (tmp_path / "tools.json").write_text(
        '[{"name": "refund", "description": "", "parameters": {"type": "object", "properties": {"order": {}}}}]'
    )
    mapping = TicketMapping.model_validate(
        {
            "id": "no",
            "tools": {"file": "tools.json"},
            "turn": {
                "role": "who", "content": "said", "roles": {"customer": ["user"]},
                "call": {"name": "tool", "parameters": "args"},
            },
        }
    )  # fmt: skip
    found = read_tickets(path, mapping, folder=tmp_path)
    assert [t.id for t in found.trajectories] == ["A", "B"]
    assert found.trajectories[0].turns[2].tool_call == ToolCall(name="refund", parameters={"order": 7})


def test_column_filled_in_a_later_row_belongs_to_the_ticket(tmp_path: Path) -> None:
    (tmp_path / "policy.txt").write_bytes("Be kind.".encode("utf-8-sig"))
    (tmp_path / "t.csv").write_text("no,who,said,tier,result\n1,customer,Hi,gold,\n1,agent,Hello,silver,solved\n")
    mapping = TicketMapping.model_validate(
        {
            "id": "no", "ticket": {"tier": "tier"}, "privileged": {"result": "result"},
            "policy": {"file": "policy.txt"}, "turn": {"role": "who", "content": "said"},
        }
    )  # fmt: skip
    (found,) = read_tickets(tmp_path / "t.csv", mapping, folder=tmp_path).trajectories
    assert (found.ticket, found.privileged) == ({"tier": "gold"}, {"result": "solved"})
    assert found.policy == "Be kind."


def test_csv_line_with_too_many_fields_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("no,who,said\nA,customer,Hi\nA,agent,Hello, you\n")
    mapping = TicketMapping.model_validate({"id": "no", "turn": {"role": "who", "content": "word"}})
    with pytest.raises(DataError, match=r"t.csv:3: line: \[' you'\]: the line has more fields than the header's 3"):
        read_tickets(path, mapping, folder=tmp_path)


def test_unquoted_line_break_leaves_both_tickets_out(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = ["1,customer,Hi", "1,agent,Your fee is 40 euro", "unless you paid", "or not", "2,customer,Why", "2,agent,So"]
    path.write_text("\n".join(["no,who,said", *rows]))
    mapping = TicketMapping.model_validate({"id": "no", "turn": {"role": "who", "content": "said"}})
    found = read_tickets(path, mapping, folder=tmp_path)
    assert [made.id for made in found.trajectories] == ["2"]
    remedy = "has 1 of 3 fields (unquoted line break?); put quotes around texts with line breaks"
    assert [(fault.line, fault.message) for fault in found.faults] == [
        (2, f"{path}:4: no: '1': line 4 {remedy}"),
        (4, f"{path}:4: no: 'unless you paid': line 4 {remedy}"),
        (5, f"{path}:5: no: 'or not': line 5 {remedy}"),
    ]


def test_tickets_beside_an_invalid_line_may_lack_a_turn(tmp_path: Path) -> None:
    """The line may be a turn of either. Spaces around an id are none of it."""
    said = [
        ("1", "customer"),
        ("1 ", "agent"),
        ("2", "customer"),
        None,
        ("2", "agent"),
        ("3", "customer"),
        ("3", "agent"),
    ]
    said += [("4", "customer"), ("", "agent"), ("5", "customer"), ("5", "agent"), ("6", "customer"), ("6", "agent")]
    rows = (
        json.dumps({"no": row[0], "who": row[1], "said": f"Hi {i}"}) if row else '{"no":' for i, row in enumerate(said)
    )
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(rows) + "\n")
    mapping = TicketMapping.model_validate({"id": "no", "turn": {"role": "who", "content": "said"}})
    found = read_tickets(path, mapping, folder=tmp_path)
    assert [made.id for made in found.trajectories] == ["1", "3", "6"]
    assert {fault.line: fault.message for fault in found.faults}[3] == (
        f"{path}: no: '2': line 4 next to it is invalid and may be a turn of this ticket; correct that line"
    )


def test_empty_columns_may_be_missing_at_the_end_of_a_row(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("no,who,said,result\n1,customer,Hi\n1,agent,Hello,solved\n")
    mapping = TicketMapping.model_validate(
        {"id": "no", "privileged": {"result": "result"}, "turn": {"role": "who", "content": "said"}}
    )
    (made,) = read_tickets(tmp_path / "t.csv", mapping, folder=tmp_path).trajectories
    assert made.privileged == {"result": "solved"}


def test_private_values_of_an_object_result_are_hidden(tmp_path: Path) -> None:
    result = {"地址": "浙江省杭州市西湖区文三路90号", "adresse": "Lindenstraße 12, 10115 Berlin"}
    answered = {"from": "system", "text": result, "tool": "find_order", "at": 3}
    (made,) = read(tmp_path, ticket(said=[*turns()[:2], answered, *turns()[3:]])).trajectories
    assert [turn.content for turn in made.turns if turn.role == "tool"] == [
        '{"地址": "[ADDRESS_1]", "adresse": "[ADDRESS_2]"}'
    ]


def test_policy_and_dialogue_share_aliases(tmp_path: Path) -> None:
    """The agent must find values from its policy under the same alias in the dialogue."""
    mapping = MAPPING.replace("Look the order up before you promise anything.", "Hotline: 977-625-2661. Be kind.")
    first, second = ({"from": "client", "text": f"Hi {i}, I am on {PHONE[:-1]}{i}"} for i in range(2))
    said = {"from": "staff", "text": "Call 977-625-2661.", "tool": "", "args": "", "at": 9}
    found = read(tmp_path, ticket("A", [first, said]), ticket("B", [second, said]), mapping=mapping)
    for made in found.trajectories:
        assert made.policy == "Hotline: [PHONE_1]. Be kind.", "the same text for all tickets"
        assert made.turns[0].content.endswith("I am on [PHONE_2]")
        assert made.turns[1].content == "Call [PHONE_1]."
    assert read(tmp_path, ticket("A", [first, said]), mapping=mapping, hide=False).trajectories[0].policy.count("977")


@pytest.mark.parametrize(
    ("times", "fault"),
    [
        (("9", "10"), ""),
        (("10", "9"), "is earlier than the turn before it (10)"),
        (("2026-01-05 9:05", "2026-01-05 10:00"), ""),
        (("2026/3/1 9:05", "2026/10/1 8:00"), ""),
        (("2026/3/1 9:05", "2026/3/1 9:01"), "is earlier than the turn before it"),
        (("9:58", "10:01"), ""),
        (("2026-01-05 9h05", "2026-01-05 10:00"), "cannot be compared: neither a number nor a date or time"),
        (("2026/01/05 09:05", "2026-01-05T10:00:00"), ""),
        (("09:05:00", "10:00:00"), ""),
        (("2026-01-05 09:05", "5"), "cannot be compared with the time before it"),
        (("2026-01-05T09:05:00Z", "2026-01-05T10:00:00+02:00"), "is earlier than the turn before it"),
        (("1/12/2026", "2/1/2026"), "no date of the column tells day from month; give dates=day_first or"),
        (("13/2/2026 9:05", "2/3/2026 8:00 AM"), ""),
        (("2/13/2026", "3/2/2026"), ""),
        (("31.1.2026", "1.2.2026 08:00"), ""),
        (("13/2/2026", "3/14/2026"), "has the day first, but that of"),
        (("13/2/2026", "12/2/2026"), "is earlier than the turn before it"),
        (("13/2/2026", "30/2/2026"), "cannot be compared"),
        (("Jan 2, 2026 9:05 AM", "Jan 2, 2026 1:05 PM"), ""),
        (("2026-01-02 11:05 AM", "2026-01-02 01:05 PM"), ""),
        (("11:05 a.m.", "1:05 pm"), ""),
        (("2 March 2026 09:05", "1-Mar-2026 10:00"), "is earlier than the turn before it"),
        (("Jan 2, 2026", "Jan 32, 2026"), "cannot be compared"),
    ],
)
def test_csv_times_are_parsed_and_compared(tmp_path: Path, times: tuple[str, str], fault: str) -> None:
    path = tmp_path / "t.csv"
    with path.open("w", newline="") as file:
        rows = [("A", "customer", "Hi", times[0]), ("A", "agent", "Hello", times[1])]
        csv.writer(file).writerows([("no", "who", "said", "at"), *rows])
    turn = {"role": "who", "content": "said", "time": "at"}
    mapping = TicketMapping.model_validate({"id": "no", "turn": turn})
    if not fault:
        assert len(read_tickets(path, mapping, folder=tmp_path).trajectories) == 1
        return
    with pytest.raises(DataError) as refused:
        read_tickets(path, mapping, folder=tmp_path)
    assert fault in str(refused.value)


def test_values_listed_in_a_tool_schema_are_not_hidden() -> None:
    """The schema lists an account name; with an alias instead, the call would be invalid."""
    names = {"type": "string", "enum": ["Alexis", "Morgan"]}
    tool = {"name": "balance", "parameters": {"type": "object", "properties": {"user_name": names, "pin": {}}}}
    row = {
        "id": "t", "ticket": {"user_name": "Riley1"}, "policy": "", "tools": [tool],
        "turns": [
            {"role": "customer", "content": "I am Alexis, or Riley1; password: 3344x"},
            {"role": "agent", "action": "call_tool", "name": "balance",
             "parameters": {"user_name": "Alexis", "pin": "3344x"}},
        ],
    }  # fmt: skip
    aliases = Aliases()
    hidden = trajectory_from_json(without_pii(row, aliases))
    assert hidden.turns[0].content == "I am Alexis, or [ACCOUNT_1]; password: [KEY_1]"
    assert hidden.turns[1].tool_call == ToolCall(name="balance", parameters={"user_name": "Alexis", "pin": "[KEY_1]"})
    assert (hidden.privileged["pii"], aliases.counts) == ({"[KEY_1]": "3344x"}, {"account": 1, "key": 1})


def test_parquet_export_is_read(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    row = ticket()
    row["messages"] = json.dumps(row["messages"])
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "t.parquet")
    (tmp_path / "map.yaml").write_text(MAPPING)
    mapping = read_mapping(tmp_path / "map.yaml")
    (made,) = read_tickets(tmp_path / "t.parquet", mapping, folder=tmp_path).trajectories
    assert made == read(tmp_path, ticket()).trajectories[0]
    others = {"product": datetime(2026, 1, 2, 3, 4), "customer": {"tier": Decimal("1.50")}, "resolution": math.nan}
    parquet.write_table(pyarrow.Table.from_pylist([{**row, **others}]), tmp_path / "t.parquet")
    (made,) = read_tickets(tmp_path / "t.parquet", mapping, folder=tmp_path).trajectories
    assert made.ticket == {"product": "2026-01-02T03:04:00", "tier": "1.50"}
    assert "ticket_summary" not in made.privileged
    (tmp_path / "bad.parquet").write_text("no parquet")
    with pytest.raises(DataError, match="not a Parquet file"):
        read_tickets(tmp_path / "bad.parquet", mapping, folder=tmp_path)


CUSTOMER = {"from": "client", "text": "Hello?"}
AGENT = {"from": "staff", "text": "Good morning."}
RESULT = {"from": "system", "text": "{}", "tool": "find_order"}
CALL = {"from": "staff", "tool": "find_order", "args": "{}"}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (ticket("X", [CUSTOMER]), "t.jsonl:2: turns: ['customer']: no turn of the agent"),
        (ticket("X", [AGENT]), "no turn of the customer"),
        (ticket("X", [CUSTOMER, {**CALL, "args": '{"phone": }'}]), "turns[1].args: '{\"phone\": }': the call's"),
        (ticket("X", [CUSTOMER, {**CALL, "args": "[1]"}]), "must be an object"),
        (ticket("X", [CUSTOMER, RESULT, CALL]), "turns[1]: 'find_order': a tool result without a preceding call"),
        (ticket("X", [{**CUSTOMER, "at": 5}, {**AGENT, "at": 4}]), "turns[1]: 4: is earlier than the turn before it"),
        (ticket("X", [{**CUSTOMER, "at": 5}, {**AGENT, "at": "late"}]), "cannot be compared"),
        (ticket("X", [{"from": "bot", "text": "Hi"}]), "turns[0].from: 'bot': unknown role"),
        (ticket("X", "no json"), "bad JSON"),
        (ticket("X", 7), "must be a list of turns"),
        (ticket("", [CUSTOMER, AGENT]), "the ticket has no id"),
        (ticket("T1", [CUSTOMER, AGENT]), "used by an earlier ticket"),
        (ticket("X", [CUSTOMER, {**AGENT, "text": "<tool_call>"}]), "turns[1].content"),
        ("[1]", "t.jsonl:2: line: [1]: must be a JSON object"),
        ('{"half": ', "bad JSON"),
    ],
)  # fmt: skip
def test_invalid_ticket_is_reported_and_others_are_imported(tmp_path: Path, row: Any, said: str) -> None:
    found = read(tmp_path, ticket(), row, ticket("T3", [CUSTOMER, AGENT]))
    assert [t.id for t in found.trajectories] == ["T1", "T3"]
    (fault,) = found.faults
    assert said in fault.message
    assert "\n" not in fault.message
    assert fault.row is not None


@pytest.mark.parametrize("hide", [True, False])
def test_private_values_of_an_invalid_ticket_are_hidden(tmp_path: Path, hide: bool) -> None:
    lines = [{**CUSTOMER, "text": f"Call me on {PHONE}"}, {**AGENT, "from": f"bot {PHONE}"}]
    (fault,) = read(tmp_path, ticket(), ticket("X", lines), hide=hide).faults
    assert "unknown role" in fault.message and (PHONE in fault.message) == (not hide)
    assert (PHONE in str(fault.row)) == (not hide) and ("[PHONE_1]" in str(fault.row)) == hide


def test_tickets_with_equal_turns_are_duplicates(tmp_path: Path) -> None:
    found = read(tmp_path, ticket("A"), ticket("B"))
    assert ([t.id for t in found.trajectories], found.duplicates) == (["A"], ("B",))


def test_missing_column_of_a_wide_export_lists_thirty_columns(tmp_path: Path) -> None:
    rows = (ticket("A", **{f"column_{i}": "x" for i in range(3000)}),)
    with pytest.raises(DataError, match=r"columns: column_0, column_1, .* and 2975 more$") as refused:
        read(tmp_path, *rows, mapping=MAPPING.replace("id: ticket_no", "id: nr"))
    assert str(refused.value).count(", ") == 29


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("role: from", "role: speaker", "mapping: turn.role: 'speaker': t.jsonl has no such column; columns: args"),
        ("product: product", "product: produkt", "'produkt': t.jsonl has no such column; did you mean 'product'?"),
        ("customer.tier", "customer.teir", "mapping: ticket.tier"),
        ("turns: messages", "turns: message", "mapping: turns: 'message'"),
        ("id: ticket_no", "id: nr", "mapping: id: 'nr'"),
        ("parameters: args", "parameters: json", "mapping: turn.call.parameters"),
        ("policy: {text: \"Look the order up before you promise anything.\"}", "policy: {file: 'x'}", "policy.file"),
        ("policy: {text", "policy: {words", "policy.words: 'words': unknown key"),
        ("policy: {text", "policy: {file: x, text", ": policy: {'file': 'x', 'text'"),
        ("policy: {text: ", "policy: [text]\ntools: {text: ", ": policy: ['text']: must be a valid string"),
        ("role: from", "text: from", "turn.text: 'text': is a key of another section; move or remove it"),
        ("id: ticket_no\n", "", "id: None: missing; add it"),
        ("tool: tool\n", "tol: tool\n", "did you mean 'tool'?"),
        ("id: ticket_no\n", "id: ticket_no\ntickets: {a: b}\n", "'tickets': unknown key; did you mean 'ticket'?"),
        ("  role: from\n", "", "turn.role: None: missing"),
        ("id: ticket_no", "id: [", "is not YAML"),
        ("agent: [staff]", "agent: staff", "turn.roles.agent: 'staff': must be a list; write [staff]"),
        ("agent: [staff]", "agent: [1]", "turn.roles.agent.0: 1: must be a valid string; put quotes around it"),
    ],
)  # fmt: skip
def test_invalid_mapping_is_rejected(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in MAPPING
    with pytest.raises((DataError, ConfigError)) as refused:
        read(tmp_path, ticket(), mapping=MAPPING.replace(old, new))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_job_writes_samples_tickets_and_rejected_rows(tmp_path: Path, capsys) -> None:
    good = [ticket(f"T{i}", [*turns(), {"from": "client", "text": f"Thanks, {i} times."}]) for i in range(12)]
    path, mapping = export(tmp_path, *good, ticket("bad", [CUSTOMER]))
    out = tmp_path / "out"
    args = ["data", "import", "tickets", f"input={path}", f"mapping={mapping}", f"output={out}"]
    assert hamr(args) == 0
    shown = capsys.readouterr().out
    assert "left out: " in shown
    assert "no turn of the agent" in shown
    trajectories = read_trajectories(out / "trajectories.jsonl")
    assert len(trajectories) == 12
    split_of = {t.id: t.meta["split"] for t in trajectories}
    assert set(split_of.values()) == {"train", "validation", "test"}
    for name in ("train", "validation", "test"):
        samples = read_samples(out / f"{name}.jsonl")
        assert len(samples) == 3 * sum(split == name for split in split_of.values())
        assert all(split_of[s.meta["dialogue"]] == name for s in samples)
        written = (out / f"{name}.jsonl").read_text()
        assert written.count(PHONE) == written.count(f'"pii": {{"[PHONE_1]": "{PHONE}"}}') == len(samples)
        assert "mia@" not in written
    (told,) = [json.loads(line) for line in (out / "report.json").read_text().splitlines()]
    assert told["tickets"] == 12
    assert told["actions"] == {"reply": 24, "call_tool": 12}
    assert told["tools"] == {"find_order": 12}
    assert told["language of the prompts"] == {"en": 12}
    assert told["planning windows"] == {"the agent acts again immediately": 12, "complete": 12, "the ticket ends": 12}
    assert told["left out"] == {"faulty": 1, "duplicates": 0}
    assert told["private values hidden"] == {"phone": 12, "email": 12}
    assert told["may still be private"] == {}
    assert told["not looked for"][0].startswith("names of persons")
    assert shown.splitlines()[-1].startswith("not looked for: names of persons")
    (rejected,) = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
    assert rejected["line"] == 13
    assert hamr(args) == 2
    assert "already contains train.jsonl" in capsys.readouterr().err
    export(tmp_path, *good)
    assert hamr([*args, "overwrite=true"]) == 0
    assert not (out / "rejected.jsonl").exists(), "what the files say now has no faults"


def test_one_dialogue_is_imported_without_splits(tmp_path: Path, capsys) -> None:
    table = "nr;who;said;at\nA;customer;Où est ma commande ?;13/02/2026 09:00\nA;agent;Déjà là.;13/02/2026 09:05\n"
    (tmp_path / "t.csv").write_bytes(table.encode("cp1252"))
    (tmp_path / "map.yaml").write_text("id: nr\nturn: {role: who, content: said, time: at}\n")
    out = tmp_path / "out"
    args = ["data", "import", "tickets", f"input={tmp_path / 't.csv'}", f"mapping={tmp_path / 'map.yaml'}"]
    assert hamr([*args, f"output={out}"]) == 2
    assert (
        "'1 dialogues': too few for three splits with held_out_frac=0.15; give split=false" in capsys.readouterr().err
    )
    assert hamr([*args, f"output={out}", "split=false"]) == 0
    form = "CSV, delimiter semicolon, encoding cp1252 (it contains 'Où'), dates with the day first"
    assert f"read as {form}\n" in capsys.readouterr().out
    (sample,) = read_samples(out / "train.jsonl")
    assert sample.history[0].content == "Où est ma commande ?"
    assert not (out / "validation.jsonl").exists() and not (out / "test.jsonl").exists()
    assert json.loads((out / "report.json").read_text())["read as"] == form


def test_import_overwrites_neither_its_input_nor_a_report(tmp_path: Path, capsys) -> None:
    export(tmp_path, ticket())
    (tmp_path / "t.jsonl").rename(tmp_path / "train.jsonl")
    args = ["data", "import", "tickets", f"input={tmp_path / 'train.jsonl'}", f"mapping={tmp_path / 'map.yaml'}"]
    assert hamr([*args, f"output={tmp_path}", "overwrite=true"]) == 2
    assert "would overwrite the input" in capsys.readouterr().err
    folder = ["data", "import", "messages", f"input={tmp_path}", f"output={tmp_path}", "overwrite=true"]
    assert hamr(folder) == 2 and "would overwrite the input" in capsys.readouterr().err
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.json").write_text("mine")
    assert hamr([*args, f"output={tmp_path / 'out'}"]) == 2
    assert "already contains report.json" in capsys.readouterr().err


def test_tickets_of_one_customer_share_a_group_without_naming_it(tmp_path: Path) -> None:
    mapping = MAPPING.replace("turns: messages", "turns: messages\ngroup: customer.tier")
    found = read(tmp_path, ticket("A"), ticket("B", [CUSTOMER, AGENT]), mapping=mapping).trajectories
    assert len({t.meta["group"] for t in found}) == 1
    assert "gold" not in str(found[0].meta)
    with pytest.raises(DataError, match="mapping: group: 'customer.teir': t.jsonl has no such column"):
        read(tmp_path, ticket("A"), mapping=mapping.replace("group: customer.tier", "group: customer.teir"))


def test_duplicate_dialogue_is_counted_and_kept_in_one_split(tmp_path: Path, capsys) -> None:
    def line(text: str, policy: str = "Be kind.") -> str:
        said = (("system", policy), ("user", text), ("assistant", "Sure."))
        return json.dumps({"messages": [{"role": role, "content": content} for role, content in said]})

    others = [line(f"Wish {i}") for i in range(6)]
    path = tmp_path / "m.jsonl"
    path.write_text("\n".join([*[line("Cancel my plan, mia@x.com")] * 6, *others, line("Wish 0", "Be brief.")]) + "\n")
    assert hamr(["data", "import", "messages", f"input={path}", f"output={tmp_path / 'out'}"]) == 0
    assert "left out: 5 duplicates of other tickets, such as 2" in capsys.readouterr().out
    ids = [s.id for name in ("train", "validation", "test") for s in read_samples(tmp_path / "out" / f"{name}.jsonl")]
    assert sorted(ids) == sorted(f"{number}-1" for number in (1, *range(7, 14)))
    assert len(read_trajectories(tmp_path / "out" / "trajectories.jsonl")) == 8
    (told,) = [json.loads(row) for row in (tmp_path / "out" / "report.json").read_text().splitlines()]
    assert told["left out"] == {"faulty": 0, "duplicates": 5}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["input=t.jsonl"], "give mapping="),
        (["input=t.xlsx", "mapping=map.yaml"], "must end in .jsonl, .json, .csv, .tsv, .parquet"),
        (["input=none.jsonl", "mapping=map.yaml"], "no such file"),
        (["input=t.jsonl", "mapping=none.yaml"], "no such file"),
        (["input=t.jsonl", "mapping=map.yaml", "pii=maybe"], "hide or keep"),
        (["input=t.jsonl", "mapping=map.yaml", "encoding=latin-x"], "encoding: 'latin-x': no such encoding; examples:"),
        (["input=t.jsonl", "mapping=map.yaml", "delimiter=::"], "must be one character or one of comma, semicolon"),
        (["input=t.jsonl", "mapping=map.yaml", "dates=iso"], "dates: 'iso': must be day_first or month_first"),
        (["input=t.jsonl", "mapping=map.yaml"], "input: '1 dialogues': too few for three splits"),
        (["input=t.jsonl", "mapping=map.yaml", "group=product"], "input: '1 dialogues in 1 groups': too few for three"),
        (["input=t.jsonl", "mapping=map.yaml", "pii=keep", "names=x"], "names: 'x': requires pii=hide"),
        (["input=bad.jsonl", "mapping=map.yaml"], "none of them is valid; the first: bad.jsonl:1"),
        (["input=empty.csv", "mapping=map.yaml"], "input: 'empty.csv': contains no ticket; give an export with rows"),
        (["input=header.csv", "--preview"], "input: 'header.csv': contains no ticket; give an export with rows"),
        (
            ["input=comma.jsonl", "--preview"],
            "contains no ticket; the first line: comma.jsonl:1: line: '{\"a\": 1},': bad",
        ),
        (["input=greeting.jsonl", "mapping=map.yaml", "split=false"], "input: '1 dialogues': none has an agent's turn"),
    ],
)
def test_bad_input_is_reported_in_one_line_with_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, args: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    export(tmp_path, ticket())
    late = {**RESULT, "args": "{}", "at": 1}
    (tmp_path / "bad.jsonl").write_text(json.dumps(ticket("X", [CUSTOMER, late])) + "\n")
    (tmp_path / "greeting.jsonl").write_text(
        json.dumps(ticket("X", [{**AGENT, "tool": "", "args": "", "at": 1}, CUSTOMER])) + "\n"
    )
    (tmp_path / "comma.jsonl").write_text('{"a": 1},\n')
    (tmp_path / "empty.csv").touch()
    (tmp_path / "header.csv").write_text("id;role;text\n")
    output = [] if "--preview" in args else ["output=out"]
    assert hamr(["data", "import", "tickets", *args, *output]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_turns_become_replies_or_tool_calls(tmp_path: Path) -> None:
    found = read(tmp_path, ticket())
    from hamr.data.trajectories import decision_points

    actions = [sample.references[0].action for _, sample in decision_points(found.trajectories[0])]
    assert [type(action) for action in actions] == [Reply, ToolCall, Reply]


def test_import_ends_with_what_may_still_be_private(tmp_path: Path, capsys) -> None:
    named = {"from": "client", "text": "My name is Mia, card ending in 4242."}
    path, mapping = export(tmp_path, *(ticket(f"T{i}", [named, *turns(), {**AGENT, "text": f"{i}"}]) for i in range(6)))
    args = ["data", "import", "tickets", f"input={path}", f"mapping={mapping}"]
    assert hamr([*args, f"output={tmp_path / 'hidden'}"]) == 0
    *_, names, digits, skipped = capsys.readouterr().out.splitlines()
    assert names == "may still be private: names after an introduction or title: 6 in 6 tickets, such as 'T0'"
    assert digits.startswith("may still be private: last digits of a card or account: 6 in 6 tickets")
    assert skipped.startswith("not looked for: ")
    assert hamr([*args, f"output={tmp_path / 'kept'}", "pii=keep"]) == 0
    assert "may still be private" not in capsys.readouterr().out


def test_falling_times_of_all_tickets_reverse_their_turns(tmp_path: Path) -> None:
    rising = {"X": turns(), "Y": turns(phone="13912345679")}
    falling = [ticket(number, said[::-1]) for number, said in rising.items()]
    found = read(tmp_path, *falling, hide=False)
    assert found.form.endswith("the newest turn first") and not found.faults
    assert found.trajectories == read(tmp_path, *map(ticket, rising, rising.values()), hide=False).trajectories
    with_one_rising = read(tmp_path, *falling, ticket("Z"))
    assert [f"t.jsonl:{fault.line}" for fault in with_one_rising.faults] == ["t.jsonl:1", "t.jsonl:2"]
    assert "is earlier than the turn before it" in with_one_rising.faults[0].message
