"""Proposed mappings: columns are found by their values, in four languages, and the proposal imports as it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hamr.cli import main as hamr
from hamr.data.proposal import propose_mapping
from hamr.data.tables import Row, read_table
from hamr.data.tickets import read_tickets
from hamr.errors import DataError

SUPPORT = (
    "message_id,ticket_id,customer_id,created_at,author_type,body,product,resolution,customer_email\n"
    "1,T1,7,2026-03-01T09:00,end-user,My order has not come yet.,shop,refunded,ann@example.org\n"
    "2,T1,7,2026-03-01T09:05,agent,I am sorry. I refund it now.,shop,refunded,ann@example.org\n"
    "3,T2,7,2026-03-02T09:00,end-user,Where is my invoice for March?,shop,sent,ann@example.org\n"
    "4,T2,7,2026-03-02T09:05,agent,I sent it to you again.,shop,sent,ann@example.org\n"
    "5,T3,8,2026-03-02T10:00,end-user,Please cancel my subscription.,tv,cancelled,bo@example.org\n"
    "6,T3,8,2026-03-02T10:05,agent,It ends on Friday.,tv,cancelled,bo@example.org\n"
)
GERMAN = (
    "Vorgang;Wann;von;Nachricht\n1;05.01.2026;Kunde;Ich möchte meinen Vertrag kündigen.\n"
    "1;06.01.2026;Mitarbeiter;Er endet im März.\n2;07.01.2026;Kunde;Wo ist meine Rechnung?\n"
    "2;07.01.2026;Mitarbeiter;Sie ist unterwegs.\n"
)
CHINESE = (
    "工单编号\t角色\t内容\n1\t客户\t我要退款，订单还没有到\n1\t客服\t请稍等，我马上处理\n"
    "2\t客户\t发票在哪里\n2\t客服\t已经发给您了\n"
)


def proposal(folder: Path, name: str, text: str, encoding: str = "utf-8") -> dict[str, Any]:
    (folder / name).write_text(text, encoding=encoding)
    return dict(propose_mapping([row for _, row in read_table(folder / name).rows], name).mapping)


def test_column_without_a_name_is_ignored(tmp_path: Path) -> None:
    """pandas writes its index so."""
    lines = SUPPORT.splitlines()
    numbered = "\n".join(f"{'' if i == 0 else i},{line}" for i, line in enumerate(lines))
    assert proposal(tmp_path, "t.csv", numbered) == proposal(tmp_path, "u.csv", SUPPORT)


def test_rows_of_turns_are_recognised(tmp_path: Path) -> None:
    assert proposal(tmp_path, "t.csv", SUPPORT) == {
        "id": "ticket_id",
        "group": "customer_id",
        "ticket": {"product": "product"},
        "privileged": {"resolution": "resolution"},
        "turn": {
            "role": "author_type",
            "content": "body",
            "roles": {"customer": ["end-user"]},
            "time": "created_at",
        },
    }


@pytest.mark.parametrize(
    ("text", "encoding", "expected"),
    [
        (
            GERMAN,
            "cp1252",
            {
                "id": "Vorgang",
                "turn": {
                    "role": "von",
                    "content": "Nachricht",
                    "roles": {"customer": ["Kunde"], "agent": ["Mitarbeiter"]},
                    "time": "Wann",
                },
            },
        ),
        (
            CHINESE,
            "gbk",
            {
                "id": "工单编号",
                "turn": {"role": "角色", "content": "内容", "roles": {"customer": ["客户"], "agent": ["客服"]}},
            },
        ),
    ],
)
def test_headers_in_other_languages_are_recognised(
    tmp_path: Path, text: str, encoding: str, expected: dict[str, Any]
) -> None:
    assert proposal(tmp_path, "t.csv", text, encoding) == expected


def test_german_headers_of_times_and_facts_are_recognised(tmp_path: Path) -> None:
    head = "message_id,ticket_id,customer_id,created_at,author_type,body,product"
    text = SUPPORT.replace(head, "nr,Vorgang,Kundennr,Erstellt am,Absender,Nachricht,Produkt")
    found = proposal(tmp_path, "t.csv", text)
    assert (found["turn"]["time"], found["ticket"]) == ("Erstellt am", {"produkt": "Produkt"})


@pytest.mark.parametrize("times", ["04", "09"])
def test_times_with_the_newest_first_are_the_time(times: str) -> None:
    whose = [("A", "agent", "04"), ("A", "customer", "03"), ("B", "customer", times), ("B", "agent", times)]
    rows = [{"id": i, "role": role, "text": "Hello", "created_at": f"2026-01-{day}"} for i, role, day in whose]
    found = propose_mapping(rows, "t.csv")
    assert found.mapping["turn"]["time"] == "created_at"


def test_dates_in_no_order_are_named() -> None:
    days = [("A", "customer", 3), ("A", "agent", 1), ("B", "customer", 1), ("B", "agent", 4)]
    rows = [{"id": i, "role": role, "text": "Hello", "created_at": f"2026-01-0{day}"} for i, role, day in days]
    found = propose_mapping(rows, "t.csv")
    assert (found.unordered, found.unused) == ("created_at", ("created_at",))
    assert "time" not in found.mapping["turn"]


def test_numbers_in_no_order_are_not_the_time() -> None:
    whose = [("A", "customer", 3), ("A", "agent", 5), ("B", "customer", 4), ("B", "agent", 1)]
    rows = [{"id": i, "role": role, "text": "Hello", "handling_time": time} for i, role, time in whose]
    assert "time" not in propose_mapping(rows, "t.csv").mapping["turn"]


def chat(number: int, **columns: Any) -> Row:
    return {
        "id": number,
        "customer": {"id": number // 2, "tier": ("gold", "basic")[number % 2]},
        "policy": "Look the order up before you promise anything.",
        "messages": [
            {"from": "client", "text": f"Where is order {number}?", "tool": None, "args": None},
            {"from": "ACME", "text": "", "tool": "find_order", "args": {"order": number}},
            {"from": "system", "text": "sent", "tool": "find_order", "args": None},
            {"from": "ACME", "text": "It was sent.", "tool": None, "args": None},
        ],
        **columns,
    }


def test_turns_in_a_column_with_calls_are_recognised() -> None:
    found = propose_mapping([chat(number) for number in range(4)], "t.jsonl")
    assert found.mapping == {
        "id": "id",
        "turns": "messages",
        "policy": "policy",
        "group": "customer.id",
        "ticket": {"tier": "customer.tier"},
        "turn": {
            "role": "from",
            "content": "text",
            "roles": {"customer": ["client"], "tool": ["system"], "agent": ["ACME"]},
            "call": {"name": "tool", "parameters": "args"},
            "tool": "tool",
        },
    }
    assert found.unused == ()


FRESHDESK = [
    {
        "id": number,
        "subject": "Parcel",
        "conversations": [
            {"body_text": f"Where is order {number}?", "incoming": True, "private": False},
            {"body_text": "Lost by the carrier.", "incoming": False, "private": True},
            {"body_text": "I am sorry, we send it again.", "incoming": False, "private": False},
        ],
    }
    for number in range(3)
]


def test_flags_tell_the_sides_and_internal_notes(tmp_path: Path) -> None:
    found = propose_mapping(FRESHDESK, "t.jsonl")
    assert found.mapping["turn"] == {
        "role": "incoming",
        "content": "body_text",
        "roles": {"customer": ["true"], "agent": ["false"]},
        "skip": {"private": ["true"]},
    }
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, FRESHDESK)))
    for ticket in read_tickets(path, found.ticket_mapping, folder=tmp_path).trajectories:
        assert [turn.role for turn in ticket.turns] == ["customer", "agent"]
        assert "carrier" not in str(ticket)


def test_rows_of_the_system_are_skipped(tmp_path: Path) -> None:
    text = SUPPORT + "7,T3,8,2026-03-02T10:06,system,Chat closed.,tv,cancelled,\n"
    (tmp_path / "t.csv").write_text(text)
    mapping = propose_mapping([row for _, row in read_table(tmp_path / "t.csv").rows], "t.csv").ticket_mapping
    assert mapping.turn.skip == {"author_type": ("system",)}
    found = read_tickets(tmp_path / "t.csv", mapping, folder=tmp_path)
    assert (len(found.trajectories), found.faults) == (3, ())


def test_two_speakers_of_which_one_is_known_are_the_two_sides() -> None:
    rows = [
        {"case": case, "who": who, "said": f"{who} says something"} for case in "AB" for who in ("visitor", "ACME Ltd")
    ]
    roles = propose_mapping(rows, "t").mapping["turn"]["roles"]
    assert roles == {"customer": ["visitor"], "agent": ["ACME Ltd"]}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"id": 1, "text": "Hello"}], "no column tells the customer's turns from the agent's"),
        ([{"comments": [{"author_id": 1, "public": True}]}], "is an export of Zendesk: use hamr data import zendesk"),
        ([{"conversation_parts": {}}], "use hamr data import intercom; it needs no mapping"),
        ([{"tickets": [{"id": 1, "requester_id": 2, "comments": []}]}], "use hamr data import zendesk"),
        ([{"conversations": [{"id": 1, "conversation_parts": {}}]}], "use hamr data import intercom"),
        ([{"messages": [{"role": "assistant", "content": "Hi"}]}], "use hamr data import messages"),
        ([{"conversations": [{"from": "human", "value": "Hi"}]}], "use hamr data import sharegpt"),
        ([{"prompt": "Hi", "completion": "Hello"}], "use hamr data import trl; it needs no mapping"),
        ([{"prompt": [], "reward_model": {"ground_truth": "Hi"}}], "use hamr data import verl"),
        ([{"who": "customer", "n": 1}, {"who": "agent", "n": 2}], "no column holds texts"),
        (
            [{"who": "customer", "text": "Hi"}, {"who": "agent", "text": "Hello"}],
            "no column names the ticket of a row; add one whose value is the same in all rows of a ticket",
        ),
    ],
)
def test_export_without_the_necessary_columns_is_refused(rows: list[Row], said: str) -> None:
    with pytest.raises(DataError) as refused:
        propose_mapping(rows, "t.csv")
    assert said in str(refused.value) and "'t.csv'" in str(refused.value)


def test_preview_prints_a_mapping_that_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(SUPPORT + "7,T4,9,2026-03-03T10:00,end-user,Hello?,tv,none,\n")
    before = set(tmp_path.iterdir())
    assert hamr(["data", "import", "tickets", "--preview", "input=t.csv"]) == 0
    printed = capsys.readouterr().out
    assert set(tmp_path.iterdir()) == before, "it writes nothing"
    assert yaml.safe_load(printed)["id"] == "ticket_id"
    assert printed.count("# sample ") == 3 and "#   agent, the reference: It ends on Friday." in printed
    assert "# Columns that are not used: message_id, customer_email" in printed
    assert "# Left out: 1 tickets; the first: t.csv:8: turns: ['customer']: no turn of the agent" in printed
    Path("map.yaml").write_text(printed)
    assert hamr(["data", "import", "tickets", "input=t.csv", "mapping=map.yaml", "output=out", "split=false"]) == 0
    assert len(Path("out/train.jsonl").read_text().splitlines()) == 3


def test_preview_reads_no_columns_off_a_torn_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{i},{who},word {i},phone" for i in range(6) for who in ("customer", "agent")]
    rows[4] = "2,customer,my phone is\nbroken,phone"
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["ticket,who,text,product", *rows]) + "\n")
    assert hamr(["data", "import", "tickets", "--preview", f"input={path}"]) == 0
    shown = capsys.readouterr().out
    assert "ticket: {product: product}" in shown and "skip" not in shown
    assert "Left out: 2 tickets" in shown


def test_preview_hides_private_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text(SUPPORT.replace("Where is my invoice", "Mail ann@example.org"))
    assert hamr(["data", "import", "tickets", "--preview", f"input={path}"]) == 0
    assert "[EMAIL_1]" in (hidden := capsys.readouterr().out) and "ann@" not in hidden
    assert hamr(["data", "import", "tickets", "--preview", f"input={path}", "pii=keep"]) == 0
    assert "ann@" in capsys.readouterr().out


def test_ambiguous_dates_are_refused_with_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text(GERMAN.replace("05.01.", "05/01/").replace("06.01.", "06/01/").replace("07.01.", "07/01/"))
    assert hamr(["data", "import", "tickets", "--preview", f"input={path}"]) == 2
    assert "give dates=day_first or dates=month_first" in capsys.readouterr().err
    assert hamr(["data", "import", "tickets", "--preview", f"input={path}", "dates=day_first"]) == 0
    assert "dates with the day first" in capsys.readouterr().out


def test_preview_turns_an_export_with_the_newest_first_around(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, shown = tmp_path / "t.csv", []
    head, *rows = SUPPORT.splitlines()
    for order in (rows, rows[::-1]):
        path.write_text("\n".join([head, *order]))
        assert hamr(["data", "import", "tickets", "--preview", f"input={path}"]) == 0
        shown.append(capsys.readouterr().out)
    assert yaml.safe_load(shown[1]) == yaml.safe_load(shown[0])
    assert "the newest turn first" in shown[1].splitlines()[0] and "the newest turn first" not in shown[0]
    assert " 0 samples" not in shown[1]


def timed(path: Path, *times: tuple[str, str]) -> Path:
    """Write tickets of two turns with these times."""
    lines = (
        f"{i},customer,Where is parcel {i}?,{first}\n{i},agent,Parcel {i} is there.,{second}\n"
        for i, (first, second) in enumerate(times)
    )
    path.write_text("Ticket,Author,Body,Sent\n" + "".join(lines))
    return path


def test_preview_orders_dates_with_the_month_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    days = [(1, 2), (9, 15), (3, 5), (10, 20)]
    path = timed(tmp_path / "t.csv", *((f"03/{a:02}/2026", f"03/{b:02}/2026") for a, b in days))
    assert hamr(["data", "import", "tickets", "--preview", f"input={path}"]) == 0
    shown = capsys.readouterr().out
    assert "Warning" not in shown and yaml.safe_load(shown)["turn"]["time"] == "Sent"


def test_preview_warns_of_times_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for times, warning in (("9h05", "9h06"), True), (("Jan 2, 2026 9:05 AM", "Jan 2, 2026 1:05 PM"), False):
        path = timed(tmp_path / "t.csv", *([tuple(f'"{time}"' for time in times)] * 2))
        assert hamr(["data", "import", "tickets", "--preview", f"input={path}"]) == 0
        shown = capsys.readouterr().out
        assert ("Warning: without turn.time: Sent has '9h05', which is not read as a time" in shown) is warning
        assert ("time" in yaml.safe_load(shown)["turn"]) is not warning


def test_preview_warns_of_an_export_without_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text("id,role,text\n1,agent,Hi\n1,customer,Hello\n2,agent,Good day\n2,customer,Hi\n")
    assert hamr(["data", "import", "tickets", "--preview", f"input={path}"]) == 0
    assert "# Warning: 0 samples. No ticket has an agent's turn after one of the customer" in capsys.readouterr().out


CALLS = (
    'id,role,text,tool,args\n1,customer,Cancel order 5,,\n1,agent,,cancel,"{""order"": 5}"\n'
    "1,tool,done,cancel,\n1,agent,Cancelled.,,\n2,customer,Cancel order 6,,\n2,agent,,cancel,{'order': 6}\n"
    "2,agent,Cancelled.,,\n"
)


def test_malformed_parameters_of_a_call_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(CALLS)
    assert hamr(["data", "import", "tickets", "--preview", "input=t.csv"]) == 0
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed)["turn"]["call"] == {"name": "tool", "parameters": "args"}
    assert "t.csv:7: args: the call's parameters are not a JSON object; correct them" in printed
