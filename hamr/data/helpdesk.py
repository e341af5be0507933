"""Exports of help desks: Zendesk and Intercom, as JSON or JSONL files or folders of them.

The role of a text's author and whether the text is public decide what becomes of it. Public texts are turns of the
customer or of the agent. Internal notes are never turns: they are dropped, or kept in `privileged["internal_notes"]`.

Zendesk   tickets of the JSON export {"id", "subject", "requester_id" or "requester", "comments": [{"author_id",
          "public", "body", "created_at"}]}, or answers of the API: {"tickets": [...]}, {"comments": [...]} with their
          "ticket_id" or in a file named after their ticket, {"users": [{"id", "role": "end-user" | "agent" |
          "admin"}]}.
Intercom  conversations {"id", "title", "source": {"body", "author": {"type"}}, "conversation_parts":
          {"conversation_parts": [{"part_type", "body", "author": {"type"}, "created_at"}]}}.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Literal

from hamr.data.columns import check_column, group_meta
from hamr.data.importers.imported import Imported
from hamr.data.names import NameFinder
from hamr.data.shapes import Shape, check_shape
from hamr.data.tables import Row, TicketFault, read_table
from hamr.data.tickets import FoundTicket, collect_tickets
from hamr.errors import DataError

Internal = Literal["drop", "privileged"]
_ENDINGS = (".json", ".jsonl", ".ndjson")
_AGENTS = frozenset({"agent", "admin", "owner"})
_ZENDESK_SYSTEM = -1
_PUBLIC_PARTS = frozenset({"comment", "open", "close", "quick_reply"})
"""Parts whose text the customer gets. The text of an assignment is a remark to the assignee."""
_CONTACTS = frozenset({"user", "lead", "contact", "visitor"})
_MARKUP = re.compile(r"<(?:[a-z]|/[a-z]|!--)", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class _Text:
    """One text of a ticket. `role` None: of the system."""

    role: Literal["customer", "agent"] | None
    text: str
    public: bool
    time: Any = None


@dataclass(frozen=True, kw_only=True)
class HelpdeskOptions:
    internal: Internal = "drop"
    bots: Literal["agent", "drop"] = "agent"
    policy: str = ""
    group: str | None = None
    hide: bool = True
    names: NameFinder | None = None


class _Comment(Shape):
    author_id: int | str
    public: bool
    body: str | None = None
    plain_body: str | None = None
    html_body: str | None = None
    created_at: str | None = None


class _Via(Shape):
    channel: int | str | None = None


class _Rating(Shape):
    score: str | None = None


class _Ticket(Shape):
    subject: str | None = None
    via: _Via | None = None
    satisfaction_rating: _Rating | None = None


class _Author(Shape):
    type: str | None = None
    id: int | str | None = None


class _Part(Shape):
    part_type: str
    body: str | None = None
    author: _Author | None = None
    created_at: int | float | str | None = None


class _Source(Shape):
    type: str | None = None
    subject: str | None = None
    body: str | None = None
    author: _Author | None = None


class _Tag(Shape):
    name: str | None = None


class _Tags(Shape):
    tags: list[_Tag] | None = None


class _ConversationRating(Shape):
    rating: int | None = None


class _Contacts(Shape):
    contacts: list[_Author] | None = None


class _Conversation(Shape):
    title: str | None = None
    contacts: _Contacts | None = None
    source: _Source | None = None
    conversation_message: _Source | None = None
    tags: _Tags | None = None
    conversation_rating: _ConversationRating | None = None


Converted = tuple[Sequence[_Text], Mapping[str, Any], Mapping[str, Any]]
"""(texts, facts of the ticket, facts that the agent does not know)."""


def read_zendesk(path: Path, options: HelpdeskOptions) -> Imported:
    """Return the tickets. Raise DataError for an unreadable file, or if no ticket is valid.

    The role of an author is that of the users. Without it, the requester is the customer, and assignees and authors of
    internal notes are agents; a ticket with another author is rejected.
    """
    objects, faults = _objects(path)
    export = _ZendeskExport()
    for place, row in objects:
        try:
            export.add(row, place)
        except DataError as error:
            faults.append(TicketFault(line=_line(place), message=str(error), row=dict(row)))
    return _collect(path, list(export.tickets.values()), export.texts, _requester, faults, options, "Zendesk")


def read_intercom(path: Path, options: HelpdeskOptions) -> Imported:
    """Return the conversations. Raise DataError for an unreadable file, or if no conversation is valid."""
    objects, faults = _objects(path)
    conversations = [
        (place, conversation)
        for place, row in objects
        for conversation in (row["conversations"] if isinstance(row.get("conversations"), list) else [row])
    ]
    convert = partial(_conversation, options=options)
    return _collect(path, conversations, convert, _contact, faults, options, "Intercom")


def _collect(
    path: Path,
    tickets: Sequence[tuple[str, Any]],
    convert: Callable[[Row, str], Converted],
    customer: Callable[[Row], Any],
    faults: list[TicketFault],
    options: HelpdeskOptions,
    name: str,
) -> Imported:
    check_column("group", options.group, (ticket for _, ticket in tickets if isinstance(ticket, dict)), path.name)
    made, blank, internal = list[FoundTicket](), 0, 0
    for place, ticket in tickets:
        where = place
        try:
            if not isinstance(ticket, dict) or ticket.get("id") in (None, ""):
                raise DataError(f"{place}: id", ticket, "must be an object with an id")
            where = f"{place}: {ticket['id']}"
            texts, facts, hidden = convert(ticket, where)
        except DataError as error:
            row = dict(ticket) if isinstance(ticket, dict) else ticket
            faults.append(TicketFault(line=_line(place), message=str(error), row=row))
            continue
        if texts and all(isinstance(text.time, type(texts[0].time)) and text.time is not None for text in texts):
            texts = sorted(texts, key=lambda text: text.time)
        notes = [text.text.strip() for text in texts if not text.public and text.text.strip()]
        turns = [text for text in texts if text.public and text.role]
        blank += sum(not text.text.strip() for text in turns)
        internal += len(notes)
        kept = {"internal_notes": notes} if notes and options.internal == "privileged" else {}
        row = {
            "id": str(ticket["id"]),
            "ticket": {key: value for key, value in facts.items() if value},
            "privileged": {key: value for key, value in {**hidden, **kept}.items() if value},
            "policy": options.policy,
            "tools": [],
            "turns": [{"role": text.role, "content": text.text.strip()} for text in turns if text.text.strip()],
            "meta": group_meta(ticket if options.group else {"id": customer(ticket)}, options.group or "id"),
        }
        made.append((_line(place), where, row))
    done = "kept as privileged" if options.internal == "privileged" else "dropped"
    form = f"{name}, {internal} internal notes {done}"
    return collect_tickets(made, faults, path, options.hide, blank, options.names, form=form)


# --- files -------------------------------------------------------------------------------------


def _objects(path: Path) -> tuple[list[tuple[str, Row]], list[TicketFault]]:
    """Return (`file:line`, object) of every object of the file, or of the files in the folder."""
    files = [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in _ENDINGS and file.is_file())
        if not files:
            raise DataError("input", str(path), f"contains no {', '.join(_ENDINGS)}; give the folder of an export")
    elif path.suffix.lower() not in _ENDINGS:
        raise DataError("input", str(path), f"must end in {', '.join(_ENDINGS)}")
    objects: list[tuple[str, Row]] = []
    faults: list[TicketFault] = []
    for file in files:
        table = read_table(file, only_utf8=True)
        objects += ((f"{file}:{line}", row) for line, row in table.rows)
        faults += table.faults
    return objects, faults


def _line(place: str) -> int:
    return int(place.rpartition(":")[2])


class _Markup(HTMLParser):
    """Text of HTML, with a line per block, a dash per item of a list and a space between the cells of a table."""

    _BLOCKS = frozenset({"p", "div", "br", "li", "ul", "ol", "tr", "h1", "h2", "h3", "h4", "blockquote", "pre"})

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self._BLOCKS:
            self.parts.append("\n- " if tag == "li" else "\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._BLOCKS and tag != "br":
            self.parts.append("\n")
        elif tag in ("td", "th"):
            self.parts.append(" ")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem is None:  # the inside of <style> and <script> is not text
            self.parts.append(data)


def _from_html(body: Any) -> str:
    """Return the text of HTML, or of a plain text as it is."""
    if not isinstance(body, str):
        return ""
    if not _MARKUP.search(body):
        return body
    markup = _Markup()
    markup.feed(body)
    markup.close()
    lines = (" ".join(line.split()) for line in "".join(markup.parts).split("\n"))
    return "\n".join(line for line in lines if line and line != "-")


# --- Zendesk -----------------------------------------------------------------------------------


class _ZendeskExport:
    """Tickets with their comments, and what the export says about the roles of authors."""

    def __init__(self) -> None:
        self.tickets: dict[str, tuple[str, Row]] = {}
        self.comments: dict[str, list[Any]] = {}
        self.roles: dict[str, str] = {}
        self.assignees: set[str] = set()
        self.note_authors: set[str] = set()
        self.requesters: set[str] = set()
        self.contested: set[str] = set()
        """Ids of several tickets with different requesters."""

    def add(self, row: Row, place: str) -> None:
        """Add an object of the export. Raise DataError for one that is neither ticket, comment nor user."""
        listed = [name for name in ("tickets", "users", "comments") if isinstance(row.get(name), list)]
        if "id" in row and ("comments" in listed or row.keys() & {"requester_id", "requester", "subject"}):
            self._add_ticket(row, place)
        elif "author_id" in row and "ticket_id" in row:
            self._add_comments(str(row["ticket_id"]), [row])
        elif listed or isinstance(row.get("ticket"), dict):
            tickets = row["tickets"] if "tickets" in listed else [row["ticket"]] if "ticket" in row else []
            for ticket in tickets:
                self._add_ticket(ticket, place)
            for user in row["users"] if "users" in listed else ():
                self._add_user(user)
            if "comments" in listed:
                for number, comments in _by_ticket(place, row["comments"]).items():
                    self._add_comments(number, comments)
        elif "id" in row and "role" in row:
            self._add_user(row)
        else:
            raise DataError(place, sorted(row), "is not a ticket, comment or user of Zendesk")

    def _add_ticket(self, ticket: Any, place: str) -> None:
        if not isinstance(ticket, dict) or ticket.get("id") in (None, ""):
            self.tickets[f"{place}, ticket {len(self.tickets)}"] = (place, ticket)  # rejected in its turn
            return
        identity = str(ticket["id"])
        first, second = (_requester(each) for each in (self.tickets.get(identity, ("", ticket))[1], ticket))
        if None not in (first, second) and str(first) != str(second):
            self.contested.add(identity)
            identity += f", requester {second}"
        self.tickets[identity] = (place, ticket)
        for key in ("requester", "submitter", "assignee"):
            self._add_user(ticket.get(key))
        self.requesters.add(str(_requester(ticket)))
        if ticket.get("assignee_id"):
            self.assignees.add(str(ticket["assignee_id"]))
        if isinstance(ticket.get("comments"), list):
            self._add_comments(str(ticket["id"]), ticket["comments"])

    def _add_comments(self, ticket: str, comments: list[Any]) -> None:
        found = self.comments.setdefault(ticket, [])
        found += [comment for comment in comments if comment not in found]  # exports may overlap
        for comment in comments:
            if isinstance(comment, dict):
                self._add_user(comment.get("author"))
                if comment.get("public") is False:
                    self.note_authors.add(str(comment.get("author_id")))

    def _add_user(self, user: Any) -> None:
        if isinstance(user, dict) and isinstance(user.get("role"), str):
            self.roles[str(user.get("id"))] = user["role"]

    def texts(self, ticket: Row, where: str) -> Converted:
        if str(ticket["id"]) in self.contested:
            remedy = "another ticket with this id has another requester; import the exports one by one"
            raise DataError(f"{where}: requester_id", _requester(ticket), remedy)
        comments = self.comments.get(str(ticket["id"]))
        if comments is None:
            raise DataError(f"{where}: comments", None, "missing; export the comments of the ticket too")
        check_shape(_Ticket, ticket, where)
        check_shape(list[_Comment], comments, f"{where}: comments")
        texts = []
        for i, comment in enumerate(comments):
            place = f"{where}: comments[{i}]"
            role = self._role(comment["author_id"], str(_requester(ticket)), place) if comment["public"] else None
            texts.append(
                _Text(role=role, text=_comment_text(comment), public=comment["public"], time=comment.get("created_at"))
            )
        rating = ticket.get("satisfaction_rating") or {}
        facts = {"subject": ticket.get("subject"), "channel": (ticket.get("via") or {}).get("channel")}
        hidden = {"status": ticket.get("status"), "tags": ticket.get("tags"), "rating": rating.get("score")}
        return texts, facts, hidden

    def _role(self, author: Any, requester: str, place: str) -> Literal["customer", "agent"] | None:
        number = str(author)
        if author == _ZENDESK_SYSTEM:
            return None
        if number in self.roles:
            return "agent" if self.roles[number] in _AGENTS else "customer"
        if number == requester:
            return "customer"
        # Zendesk makes replies of third parties private, so a requester elsewhere is not an agent because of a note.
        if number in self.assignees or number in self.note_authors - self.requesters:
            return "agent"
        raise DataError(
            f"{place}.author_id", author, "its role is unknown; put the users' export (users) into the folder"
        )


def _requester(ticket: Row) -> Any:
    requester = ticket.get("requester")
    return ticket.get("requester_id") or (requester.get("id") if isinstance(requester, dict) else None)


def _comment_text(comment: Row) -> str:
    if plain := comment.get("plain_body"):
        return html.unescape(str(plain)).replace("\xa0", " ")
    return str(comment.get("body") or "") or _from_html(comment.get("html_body"))


def _by_ticket(place: str, comments: list[Any]) -> dict[str, list[Any]]:
    """Return the comments of an answer of the API by their `ticket_id`.

    Comments without one belong to the ticket of the others, or if these have several, to the number in the file's name.
    """
    found: dict[str, list[Any]] = {}
    unnamed: list[Any] = []
    for comment in comments:
        number = comment.get("ticket_id") if isinstance(comment, dict) else None
        group = unnamed if number is None else found.setdefault(str(number), [])
        group.append(comment)
    if unnamed or not found:
        path = Path(place.rpartition(":")[0])
        numbers = list(found) if len(found) == 1 else re.findall(r"\d+", path.stem)
        if not numbers:
            raise DataError(
                place, path.name, "names no ticket; name a file of comments after its ticket (comments_17.json)"
            )
        found.setdefault(numbers[-1], []).extend(unnamed)
    return found


# --- Intercom ----------------------------------------------------------------------------------


def _conversation(conversation: Row, where: str, options: HelpdeskOptions) -> Converted:
    check_shape(_Conversation, conversation, where)
    source = conversation.get("source") or conversation.get("conversation_message") or {}
    parts = conversation.get("conversation_parts")
    parts = parts.get("conversation_parts") if isinstance(parts, dict) else parts
    if not isinstance(parts, list):
        remedy = "missing; retrieve each conversation by its id, lists of conversations have no parts"
        raise DataError(f"{where}: conversation_parts", parts, remedy)
    check_shape(list[_Part], parts, f"{where}: conversation_parts")
    opening = {**source, "part_type": "comment", "created_at": conversation.get("created_at")}
    texts = list(_parts([opening, *parts], where, options))
    subject = conversation.get("title") or _from_html(source.get("subject"))
    facts = {"subject": subject, "channel": source.get("type")}
    tags = (conversation.get("tags") or {}).get("tags") or []
    rating = (conversation.get("conversation_rating") or {}).get("rating")
    hidden = {"status": conversation.get("state"), "tags": [tag.get("name") for tag in tags], "rating": rating}
    return texts, facts, hidden


def _contact(conversation: Row) -> Any:
    """Return the id of the customer, None where the conversation names none."""
    listed = (conversation.get("contacts") or {}).get("contacts") or []
    source = (conversation.get("source") or conversation.get("conversation_message") or {}).get("author") or {}
    return next((each.get("id") for each in (*listed, source) if each.get("type") in _CONTACTS), None)


def _parts(parts: Sequence[Any], where: str, options: HelpdeskOptions) -> Iterator[_Text]:
    for i, part in enumerate(parts):
        place = f"{where}: {f'conversation_parts[{i - 1}]' if i else 'source'}"
        body = _from_html(part.get("body"))
        if part.get("redacted") or (not body and part["part_type"] != "comment"):
            continue  # assignments, state changes
        sender = (part.get("author") or {}).get("type")
        kind = part["part_type"]
        if sender in _CONTACTS:
            public = not kind.startswith("note") and kind != "assignment"
            yield _Text(role="customer", text=body, public=public, time=part.get("created_at"))
        elif sender in ("admin", "team", "bot"):
            public = kind in _PUBLIC_PARTS
            role: Literal["agent"] | None = None if sender == "bot" and options.bots == "drop" else "agent"
            yield _Text(role=role, text=body, public=public, time=part.get("created_at"))
        elif body:
            raise DataError(f"{place}.author.type", sender, "unknown author; use user, lead, admin or bot")
