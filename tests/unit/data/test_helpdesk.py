"""Exports of Zendesk and Intercom: roles, and internal notes that never become turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hamr.cli import main as hamr
from hamr.data.helpdesk import HelpdeskOptions, read_intercom, read_zendesk
from hamr.data.importers.imported import Imported
from hamr.data.samples import read_samples
from hamr.errors import DataError
from hamr.types import Turn

CUSTOMER, AGENT, OTHER = 11, 22, 33
NOTE = "Customer is difficult, offer 20 % at most."
DIALOGUE = (
    Turn(role="customer", content="My parcel has not come."),
    Turn(role="agent", content="I am sorry. I refund it now."),
    Turn(role="customer", content="Thank you."),
)


def comment(author: int, body: str, minute: int, *, public: Any = True, **more: Any) -> dict[str, Any]:
    created = f"2026-03-01T09:{minute:02}:00Z"
    return {"id": minute, "author_id": author, "body": body, "public": public, "created_at": created, **more}


def comments() -> list[dict[str, Any]]:
    return [
        comment(CUSTOMER, "My parcel has not come.", 1),
        comment(AGENT, NOTE, 2, public=False),
        comment(-1, "This ticket was merged.", 3),
        comment(CUSTOMER, "Thank you.", 9),
        comment(AGENT, "ignored", 5, plain_body="I am sorry.&nbsp;I refund it now."),
        comment(AGENT, " ", 6),
    ]


def ticket(number: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "subject": "Parcel",
        "requester_id": CUSTOMER,
        "assignee_id": AGENT,
        "status": "solved",
        "via": {"channel": "email"},
        "tags": ["vip"],
        "satisfaction_rating": {"score": "good"},
        "comments": comments(),
        **more,
    }


def zendesk(path: Path, **options: Any) -> Imported:
    return read_zendesk(path, HelpdeskOptions(**options))


def write(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_zendesk_export_becomes_turns_without_internal_notes(tmp_path: Path) -> None:
    found = zendesk(write(tmp_path / "t.jsonl", ticket()))
    (made,) = found.trajectories
    assert made.turns == DIALOGUE
    assert made.ticket == {"subject": "Parcel", "channel": "email"}
    assert made.privileged == {"status": "solved", "tags": ["vip"], "rating": "good"}
    assert (found.blank, found.form) == (1, "Zendesk, 1 internal notes dropped")


@pytest.mark.parametrize("internal", ["drop", "privileged"])
def test_internal_notes_are_privileged_at_most(tmp_path: Path, internal: Any) -> None:
    found = zendesk(write(tmp_path / "t.jsonl", ticket()), internal=internal)
    (made,) = found.trajectories
    assert made.turns == DIALOGUE and "difficult" not in json.dumps(dict(made.ticket))
    assert made.privileged.get("internal_notes") == ([NOTE] if internal == "privileged" else None)


def test_answers_of_the_zendesk_api_are_joined(tmp_path: Path) -> None:
    """Users, tickets and the comments of each ticket, whose file is named after it."""
    users = [{"id": AGENT, "role": "admin"}, {"id": OTHER, "role": "agent"}, {"id": CUSTOMER, "role": "end-user"}]
    bare = [{key: value for key, value in ticket(n).items() if key != "comments"} for n in (17, 18)]
    write(tmp_path / "tickets.json", {"tickets": bare, "count": 2})
    write(tmp_path / "users.json", {"users": users})
    write(tmp_path / "comments" / "ticket_17_comments.json", {"comments": comments()})
    second = [comment(CUSTOMER, "Hello?", 1), comment(OTHER, "Hi.", 2, ticket_id=18)]
    write(tmp_path / "comments" / "18.json", {"comments": second, "users": users})
    assert [made.turns for made in zendesk(tmp_path).trajectories] == [
        DIALOGUE,
        (Turn(role="customer", content="Hello?"), Turn(role="agent", content="Hi.")),
    ]


def test_comments_of_several_tickets_in_one_file_are_separated(tmp_path: Path) -> None:
    bare = [{key: value for key, value in ticket(n).items() if key != "comments"} for n in (1, 2)]
    write(tmp_path / "tickets.json", {"tickets": bare})
    first = [comment(CUSTOMER, "Where?", 1, ticket_id=1), comment(AGENT, "Here.", 2, ticket_id=1)]
    second = [comment(CUSTOMER, "Cancel.", 3, ticket_id=2), comment(AGENT, "Cancelled.", 4, ticket_id=2)]
    path = write(tmp_path / "comments.json", {"comments": [*first, *second]})
    found = zendesk(tmp_path)
    assert found.faults == ()
    assert [[turn.content for turn in made.turns] for made in found.trajectories] == [
        ["Where?", "Here."], ["Cancel.", "Cancelled."],
    ]  # fmt: skip
    write(path, {"comments": [*first, *second, comment(AGENT, "To whom?", 5)]})
    with pytest.raises(DataError, match=r"comments.json:1: 'comments.json': names no ticket"):
        zendesk(tmp_path)


def test_role_of_the_user_decides_against_the_ticket(tmp_path: Path) -> None:
    """An agent may open a ticket for the customer and be named as its requester."""
    users = [{"id": CUSTOMER, "role": "agent"}, {"id": AGENT, "role": "end-user"}]
    (made,) = zendesk(write(tmp_path / "t.json", {"tickets": [ticket(assignee_id=None)], "users": users})).trajectories
    assert [turn.role for turn in made.turns] == ["agent", "customer", "agent"]


def test_requester_elsewhere_is_no_agent_because_of_a_private_reply(tmp_path: Path) -> None:
    """Zendesk makes the replies of third parties private."""
    copied = ticket(2, comments=[*comments(), comment(OTHER, "I ask the same.", 10)])
    own = ticket(3, requester_id=OTHER, comments=[comment(OTHER, "From another address", 1, public=False)])
    found = zendesk(write(tmp_path / "t.jsonl", ticket(), copied, own))
    assert [fault.line for fault in found.faults] == [2, 3], "not the agent's reply"


def test_ticket_of_two_exports_has_its_comments_once(tmp_path: Path) -> None:
    for name in ("march.json", "april.json"):
        (tmp_path / name).write_text(json.dumps(ticket()))
    assert zendesk(tmp_path).trajectories[0].turns == DIALOGUE


def test_two_requesters_of_one_id_leave_both_tickets_out(tmp_path: Path) -> None:
    other = ticket(2, requester_id=OTHER, subject="Invoice", comments=[comment(OTHER, "My invoice?", 1)])
    found = zendesk(write(tmp_path / "t.jsonl", ticket(), ticket(2), other, ticket(2), other))
    assert [made.id for made in found.trajectories] == ["1"]
    remedy = "another ticket with this id has another requester; import the exports one by one"
    assert [fault.message.rpartition("/")[2] for fault in found.faults] == [
        f"t.jsonl:4: 2: requester_id: {CUSTOMER}: {remedy}",
        f"t.jsonl:5: 2: requester_id: {OTHER}: {remedy}",
    ]


def test_styles_are_no_text_and_cells_stay_apart(tmp_path: Path) -> None:
    page = "<style>p {color: red}</style><script>run()</script><table><tr><td>Fee</td><td>$4</td></tr></table>"
    said = [comment(CUSTOMER, "", 1, html_body=page), comment(AGENT, "Yes.", 2)]
    (tmp_path / "t.json").write_text(json.dumps(ticket(comments=said)))
    assert zendesk(tmp_path / "t.json").trajectories[0].turns[0].content == "Fee $4"


def test_plain_text_is_no_markup(tmp_path: Path) -> None:
    said = [comment(CUSTOMER, "Use <b>&amp; here", 1), comment(AGENT, "", 2, html_body="<p>So &lt;b&gt;.</p>")]
    (made,) = zendesk(write(tmp_path / "t.jsonl", ticket(comments=said))).trajectories
    assert [turn.content for turn in made.turns] == ["Use <b>&amp; here", "So <b>."]


def test_author_of_unknown_role_rejects_the_ticket(tmp_path: Path) -> None:
    stranger = ticket(2, comments=[*comments(), comment(OTHER, "I ask the same.", 10)])
    found = zendesk(write(tmp_path / "t.jsonl", ticket(), stranger))
    assert len(found.trajectories) == 1
    (fault,) = found.faults
    assert fault.line == 2
    assert fault.message.endswith(
        "t.jsonl:2: 2: comments[6].author_id: 33: its role is unknown; put the users' export (users) into the folder"
    )
    known = write(tmp_path / "t.jsonl", ticket(), stranger, {"id": OTHER, "role": "end-user", "name": "Bo"})
    assert len(zendesk(known).trajectories) == 2


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"name": "x"}, "t.jsonl:1: ['name']: is not a ticket, comment or user of Zendesk"),
        (ticket(comments=None), "t.jsonl:1: 1: comments: None: missing; export the comments of the ticket too"),
        (ticket(comments=[7]), "1: comments[0]: 7: must be a JSON object"),
        (
            ticket(comments=[comment(CUSTOMER, "Hi", 1, public=None)]),
            "1: comments[0].public: None: must be a valid boolean",
        ),
        ({"tickets": [{"subject": "x"}]}, "t.jsonl:1: id: {'subject': 'x'}: must be an object with an id"),
        ({"comments": []}, "names no ticket; name a file of comments after"),
        (ticket(comments=comments()[:1]), "t.jsonl:1: 1: turns: ['customer']: no turn of the agent"),
    ],
)
def test_malformed_zendesk_export_is_refused_with_its_place(tmp_path: Path, row: Any, said: str) -> None:
    with pytest.raises(DataError) as refused:
        zendesk(write(tmp_path / "t.jsonl", row))
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"must end in .json, .jsonl, .ndjson"):
        zendesk(tmp_path / "t.csv")
    with pytest.raises(DataError, match=r"contains no .json, .jsonl, .ndjson; give the folder of an export"):
        zendesk(tmp_path)


# --- Intercom ----------------------------------------------------------------------------------


def part(kind: str, sender: str, body: str | None, time: int, **more: Any) -> dict[str, Any]:
    return {"part_type": kind, "author": {"type": sender, "id": "1"}, "body": body, "created_at": time, **more}


def conversation(number: int = 1, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    parts = parts or (
        part("note", "admin", f"<p>{NOTE}</p>", 2),
        part("assignment", "admin", "Assigned to the second line", 3),
        part("note_and_close", "admin", "Never tell the customer.", 4),
        part("close", "admin", "<p>I am sorry.</p><p>I refund it now.</p><ul><li>today</li></ul>", 6),
        part("comment", "bot", "We answer soon.", 5),
        part("open", "user", "Thank you.", 7),
        part("comment", "admin", "deleted", 8, redacted=True),
        part("close", "admin", None, 9),
    )
    return {
        "type": "conversation",
        "id": str(number),
        "title": None,
        "created_at": 1,
        "source": {
            "type": "email",
            "subject": "<p>Parcel</p>",
            "body": "<p>My parcel<br>has not &amp; never come.</p>",
            "author": {"type": "user", "id": f"user-{number % 2}"},
        },
        "state": "closed",
        "tags": {"tags": [{"name": "vip"}]},
        "conversation_rating": {"rating": 5},
        "conversation_parts": {"conversation_parts": list(parts), "total_count": len(parts)},
        **more,
    }


def intercom(path: Path, **options: Any) -> Imported:
    return read_intercom(path, HelpdeskOptions(**options))


def test_intercom_parts_become_turns_without_notes(tmp_path: Path) -> None:
    found = intercom(write(tmp_path / "c.json", {"conversations": [conversation()]}))
    (made,) = found.trajectories
    assert made.turns == (
        Turn(role="customer", content="My parcel\nhas not & never come."),
        Turn(role="agent", content="We answer soon."),
        Turn(role="agent", content="I am sorry.\nI refund it now.\n- today"),
        Turn(role="customer", content="Thank you."),
    )
    assert made.ticket == {"subject": "Parcel", "channel": "email"}
    assert made.privileged == {"status": "closed", "tags": ["vip"], "rating": 5}
    assert found.form == "Intercom, 3 internal notes dropped"


def test_intercom_notes_are_privileged_and_bots_dropped_on_request(tmp_path: Path) -> None:
    path = write(tmp_path / "c.jsonl", conversation())
    (made,) = intercom(path, internal="privileged", bots="drop").trajectories
    assert made.privileged["internal_notes"] == [NOTE, "Assigned to the second line", "Never tell the customer."]
    assert [turn.role for turn in made.turns] == ["customer", "agent", "customer"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"id": "1"}, "c.jsonl:1: 1: conversation_parts: None: missing; retrieve each conversation by its id"),
        ({"title": "x"}, "must be an object with an id"),
        (conversation(1, part("comment", "alien", "Hi", 1)), "conversation_parts[0].author.type: 'alien': unknown"),
        (conversation(1, part("note", "admin", "Hi", 1)), "no turn of the agent"),
        (conversation(conversation_parts=[7]), "conversation_parts[0]: 7: must be a JSON object"),
    ],
)
def test_malformed_conversation_is_refused_with_its_place(tmp_path: Path, row: Any, said: str) -> None:
    with pytest.raises(DataError) as refused:
        intercom(write(tmp_path / "c.jsonl", row))
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_tickets_of_one_customer_are_a_group(tmp_path: Path) -> None:
    tickets = [
        ticket(n, subject=str(n), comments=[comment(11, f"Wish {n}.", 1), comment(22, "Yes.", 2)]) for n in (1, 2)
    ]
    tickets.append({**ticket(3), "requester_id": None, "requester": {"id": 11, "role": "end-user"}})
    path = write(tmp_path / "z.jsonl", *tickets)
    assert len({made.meta["group"] for made in zendesk(path).trajectories}) == 1
    assert len({made.meta["group"] for made in zendesk(path, group="id").trajectories}) == 3
    to_customer = {"type": "email", "body": "<p>News</p>", "author": {"type": "admin", "id": "1"}}
    contacts = {"type": "contact.list", "contacts": [{"type": "contact", "id": "user-1"}]}
    sources: list[dict[str, Any]] = [{}, {}, {"source": to_customer, "contacts": contacts}, {"source": to_customer}]
    said = ((part("open", "user", f"Wish {n}.", 2), part("comment", "admin", "Yes.", 3)) for n in range(1, 5))
    chats = [conversation(n, *parts, **more) for n, parts, more in zip(range(1, 5), said, sources, strict=True)]
    groups = [made.meta.get("group") for made in intercom(write(tmp_path / "c.jsonl", *chats)).trajectories]
    assert groups[0] == groups[2] != groups[1] and groups[3] is None
    assert "contacts.contacts: 7: must be a list" in str(
        intercom(write(tmp_path / "d.jsonl", conversation(1), conversation(2, contacts={"contacts": 7})))
        .faults[0]
        .message
    )


# --- commands ----------------------------------------------------------------------------------


def test_commands_import_with_policy_group_and_aliases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        conversation(
            n, part("comment", "admin", f"Write to bo{n}@example.org, case {n}.", 2), part("note", "admin", NOTE, 3)
        )
        for n in range(6)
    ]
    path, policy = write(tmp_path / "c.jsonl", *rows, {"id": "9"}), tmp_path / "policy.txt"
    policy.write_text("Be kind.\n")
    words = ["data", "import", "intercom", f"input={path}", f"output={tmp_path / 'out'}", f"policy={policy}"]
    assert hamr([*words, "group=source.author.id", "split=false", "internal=privileged"]) == 0
    printed = capsys.readouterr().out
    assert "read as Intercom, 6 internal notes kept as privileged" in printed and "left out: " in printed
    samples = read_samples(tmp_path / "out" / "train.jsonl")
    assert {sample.policy for sample in samples} == {"Be kind."}
    assert {sample.references[0].action.content for sample in samples} == {
        f"Write to [EMAIL_1], case {n}." for n in range(6)
    }
    assert len({sample.meta["group"] for sample in samples}) == 2
    assert hamr([*words, "group=author", "overwrite=true"]) == 2
    assert "group: 'author': c.jsonl has no such column" in capsys.readouterr().err
    assert hamr(["data", "import", "zendesk", f"input={path}", "output=x", f"policy={tmp_path / 'none'}"]) == 2
    assert "policy: " in (error := capsys.readouterr().err) and error.count("\n") == 1
