"""Import of a ticket export (JSONL, JSON, CSV, Parquet) as trajectories, with a mapping of its columns.

A fault of the mapping aborts the import. A fault of a ticket excludes that ticket and is reported with its line and
reason.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from hamr.config.tickets import TicketMapping, TicketSource, TurnColumns
from hamr.config.yaml_files import read_checked
from hamr.data.columns import check_column, group_meta, value_at
from hamr.data.hiding import without_pii
from hamr.data.importers.imported import Imported, from_trajectories
from hamr.data.importers.messages import read_chat_rows
from hamr.data.importers.widen import add_called_tools, calls_in, derived_tools
from hamr.data.names import NameFinder
from hamr.data.pii import Aliases
from hamr.data.samples import parse_line
from hamr.data.tables import ExportTable, Row, TicketFault, read_table
from hamr.data.times import DateOrder, date_order, moment
from hamr.data.trajectories import Trajectory, trajectory_from_json, trajectory_to_json
from hamr.errors import DataError


def read_mapping(path: Path) -> TicketMapping:
    """Read a mapping. Raise ConfigError (no such file, not YAML, an invalid key or value)."""
    return read_checked(path, TicketMapping, "mapping")[0]


def read_tickets(
    path: Path,
    mapping: TicketMapping,
    *,
    folder: Path,
    hide: bool = True,
    names: NameFinder | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    dates: DateOrder | None = None,
    group: str | None = None,
    most: int | None = None,
) -> Imported:
    """Read every ticket of the export.

    Args:
        path: The export.
        mapping: Its columns.
        folder: Folder with the files that the mapping names.
        hide: Replace private values by aliases (`hamr.data.pii`). Values that tool calls need are kept in
            `privileged["pii"]`, {alias: value}; no others are kept anywhere.
        names: Finds the names of persons to hide, too.
        encoding: Encoding of the export. By default, it is detected.
        delimiter: Delimiter of a CSV. By default, it is detected.
        dates: Order of day and month in `turn.time`. By default, the dates of the whole column decide it.
        group: Column whose tickets are in one split. Replaces that of the mapping.
        most: Maximum number of tickets, the first of the export. By default, all.

    Without a mapping for tools, they are derived from the calls.

    Raises:
        DataError: A file is unreadable, a column does not exist, or no ticket of the export is valid.
    """
    table = read_table(path, encoding=encoding, delimiter=delimiter)
    faults = table.faults
    shared = {name: _shared_value(name, getattr(mapping, name), folder) for name in ("policy", "tools")}
    grouped = list(_tickets(_complete_rows(table, mapping, path), mapping, path, faults))
    if group:
        check_column("group", group, (ticket for _, ticket, _ in grouped), path.name)
        mapping = mapping.model_copy(update={"group": group})
    _check_columns(grouped, mapping, path)
    order = _date_order(grouped, mapping.turn.time, path, dates)
    if turned := _is_newest_first(grouped, mapping.turn.time, order):
        grouped = [(line, ticket, turns[::-1]) for line, ticket, turns in grouped]
    made, blank = list[FoundTicket](), 0
    for line, ticket, turns in grouped[:most]:
        where = f"{path}:{line}"
        try:
            row, blanks = _convert_ticket(ticket, turns, mapping, shared, where, order)
            made.append((line, where, row))
            blank += blanks
        except DataError as error:
            faults.append(TicketFault(line=line, message=str(error), row=[dict(t) for t in turns]))
    form = f"{table.form}, dates with the {order.partition('_')[0]} first" if order else table.form
    form += ", the newest turn first" if turned else ""
    derived: Derived = "all" if mapping.tools is None else "none"
    return collect_tickets(made, faults, path, hide, blank, names, form=form, derived=derived)


def read_chats(path: Path, *, group: str | None = None, hide: bool = True, names: NameFinder | None = None) -> Imported:
    """Read every chat of a file or folder (`hamr.data.importers.messages`). Faulty ones are left out and reported.

    Tools that a chat calls and does not list are derived from the calls of the file.

    Raises:
        DataError: A file is unreadable, the column of the group does not exist, or no chat is valid.
    """
    faults: list[TicketFault] = []
    made, dropped = read_chat_rows(path, group, faults)
    form = ", ".join(sorted({row["meta"]["dataset"] for *_, row in made}))
    if parts := dropped["parts"]:
        form += f", {parts} images and other parts without text dropped"
    if unanswered := dropped["open"]:
        form += f", {unanswered} tool calls have no result"
    same = ("policy", "turns")
    return collect_tickets(made, faults, path, hide, dropped["blank"], names, form=form, same=same, derived="called")


def _date_order(
    grouped: Sequence[tuple[int, Row, list[Row]]], column: str | None, path: Path, given: DateOrder | None
) -> DateOrder | None:
    if column is None:
        return None
    times = ((f"{path}:{line}", value_at(turn, column)) for line, _, turns in grouped for turn in turns)
    return date_order(column, times, given)


def _is_newest_first(
    grouped: Sequence[tuple[int, Row, list[Row]]], column: str | None, order: DateOrder | None
) -> bool:
    """Return whether the times say that the export has the newest turn of each ticket first.

    They fall in two tickets or more and rise in none. Anything else is the oldest first, or a fault of a ticket.
    """
    if column is None:
        return False
    falling = 0
    for _, _, turns in grouped:
        try:
            times = [moment(value, "", order) for turn in turns if (value := value_at(turn, column)) not in (None, "")]
            steps = list(itertools.pairwise(times))
            if any(after > before for before, after in steps):
                return False
            falling += any(after < before for before, after in steps)
        except (DataError, TypeError):
            return False
    return falling > 1


FoundTicket = tuple[int, str, dict[str, Any]]
"""(line, place in messages, trajectory row)."""
Derived = Literal["none", "called", "all"]
"""Tools derived from the calls of the file that a ticket gets: those that it calls and does not list, or all."""


def collect_tickets(
    made: Sequence[FoundTicket],
    faults: list[TicketFault],
    path: Path,
    hide: bool,
    blank: int,
    names: NameFinder | None,
    *,
    form: str,
    same: Sequence[str] = ("turns",),
    derived: Derived = "none",
) -> Imported:
    """Return the tickets without private values and duplicates. Faulty ones join `faults`.

    `same` are the fields in which duplicates agree. Tools are derived from the calls with aliases, which they have to
    accept. Raises DataError if no ticket is valid.
    """
    kept: dict[str, Trajectory] = {}
    seen: dict[str, str] = {}
    duplicates, hidden = [], Counter[str]()
    valid: list[tuple[int, str, dict[str, Any], dict[str, Any], Aliases]] = []
    for (line, where, listed), row in zip(made, _with_derived([row for *_, row in made], derived), strict=True):
        try:
            trajectory_from_json(row, where=where)
        except DataError as error:
            faults.append(TicketFault(line=line, message=str(error), row=row))
            continue
        aliases = Aliases(names=names)
        valid.append((line, where, row, without_pii(listed, aliases) if hide else listed, aliases))
    shown = _with_derived([row for *_, row, _ in valid], derived)
    for (line, where, row, _, aliases), found in zip(valid, shown, strict=True):
        try:
            trajectory = trajectory_from_json(found, where=where)
            if trajectory.id in kept:
                raise DataError(f"{where}: id", trajectory.id, "used by an earlier ticket; make it unique")
        except DataError as error:
            faults.append(TicketFault(line=line, message=str(error), row=row))
            continue
        fields = trajectory_to_json(trajectory)
        content = json.dumps([fields[name] for name in same], sort_keys=True)
        if content in seen:
            duplicates.append(trajectory.id)
            continue
        seen[content] = trajectory.id
        kept[trajectory.id] = trajectory
        hidden.update(aliases.counts)
    if not kept:
        if not faults:
            raise DataError("input", str(path), "contains no ticket; give an export with rows")
        first = min(faults, key=lambda fault: fault.line).message
        raise DataError(str(path), f"{len(faults)} tickets", f"none of them is valid; the first: {first}")
    return dataclasses.replace(
        from_trajectories(tuple(kept.values())),
        faults=tuple(
            sorted((_redact_fault(fault, names) if hide else fault for fault in faults), key=lambda fault: fault.line)
        ),
        duplicates=tuple(duplicates),
        hidden=hidden,
        blank=blank,
        form=form,
    )


def _with_derived(rows: Sequence[dict[str, Any]], which: Derived) -> Sequence[dict[str, Any]]:
    if which == "none":
        return rows
    tools = derived_tools(calls_in(row["turns"] for row in rows))
    if which == "all":
        return [{**row, "tools": list(tools.values())} for row in rows]
    return [{**row, "tools": add_called_tools(row["tools"], row["turns"], tools)} for row in rows]


def _redact_fault(fault: TicketFault, names: NameFinder | None) -> TicketFault:
    """Return the fault with aliases for private values. Its line locates the originals."""
    aliases = Aliases(names=names)
    aliases.learn_value("", fault.row)
    aliases.learn(fault.message)
    return TicketFault(line=fault.line, message=aliases.hide(fault.message), row=aliases.hide_value(fault.row))


# --- tickets among the rows ----------------------------------------------------------------------


def _complete_rows(table: ExportTable, mapping: TicketMapping, path: Path) -> list[tuple[int, Row]]:
    """Return the rows without those of broken tickets, which join the faults of the table.

    A CSV row without the field of a needed column is usually the rest of a text with a line break that is not in
    quotes. Then its own ticket and the ticket of the row before it are broken. Other columns may be missing at the end
    of a row, since some programs do not write empty fields there.

    Where a row is one turn, the tickets of the rows before and after an invalid line, or one without an id, may lack
    that turn, and are broken too.
    """
    turn = mapping.turn
    needed = [mapping.turns] if mapping.turns else [turn.role, turn.content, turn.time, *turn.skip]
    needed.append(mapping.id)
    broken: dict[str, str] = {}
    before: Row | None = None
    for line, row in table.rows:
        if line in table.short and any(column in row and row[column] is None for column in needed if column):
            number = sum(value is not None for value in row.values())
            remedy = (
                f"line {line} has {number} of {len(row)} fields (unquoted line break?); "
                "put quotes around texts with line breaks"
            )
            for each in (before, row):
                if each is not None:
                    identity = _identity(each, mapping)
                    broken.setdefault(identity, str(DataError(f"{path}:{line}: {mapping.id}", identity, remedy)))
        before = row
    if mapping.turns is None:
        for line, identity in _beside_invalid(table, mapping):
            remedy = f"line {line} next to it is invalid and may be a turn of this ticket; correct that line"
            broken.setdefault(identity, str(DataError(f"{path}: {mapping.id}", identity, remedy)))
    tickets: dict[str, list[tuple[int, Row]]] = {}
    for line, row in table.rows if broken else ():
        tickets.setdefault(_identity(row, mapping), []).append((line, row))
    for identity, message in broken.items():
        rows = tickets[identity]
        table.faults.append(TicketFault(line=rows[0][0], message=message, row=[dict(row) for _, row in rows]))
    return [(line, row) for line, row in table.rows if not broken or _identity(row, mapping) not in broken]


def _identity(row: Row, mapping: TicketMapping) -> str:
    """Return the id of a row's ticket, empty if it has none."""
    value = value_at(row, mapping.id)
    return "" if value is None else str(value).strip()


def _beside_invalid(table: ExportTable, mapping: TicketMapping) -> Iterator[tuple[int, str]]:
    """Yield (invalid line, id of the ticket) for the rows next to invalid lines and to rows without an id."""
    found = sorted([(line, _identity(row, mapping)) for line, row in table.rows] + [(f.line, "") for f in table.faults])
    for before, after in itertools.pairwise(found):
        for (line, identity), (_, beside) in ((before, after), (after, before)):
            if not identity and beside:
                yield line, beside


def _tickets(
    rows: Iterable[tuple[int, Row]], mapping: TicketMapping, path: Path, faults: list[TicketFault]
) -> Iterator[tuple[int, Row, list[Row]]]:
    """Yield (line, columns of the ticket, its turns), from a column with the turns or from the rows of one id."""
    groups: dict[str, tuple[int, Row, list[Row]]] = {}
    for line, row in rows:
        if mapping.turns is not None:
            try:
                yield line, row, _turns(value_at(row, mapping.turns), f"{path}:{line}: {mapping.turns}")
            except DataError as error:
                faults.append(TicketFault(line=line, message=str(error), row=dict(row)))
            continue
        groups.setdefault(_identity(row, mapping), (line, row, []))[2].append(row)
    for line, _, rows_of_ticket in groups.values():
        # A column may be filled in a later row only, such as the resolution in the last one.
        values = {
            name: value for row in reversed(rows_of_ticket) for name, value in row.items() if value not in (None, "")
        }
        yield line, {**rows_of_ticket[0], **values}, rows_of_ticket


def _turns(value: Any, where: str) -> list[Row]:
    turns = parse_line(value, where) if isinstance(value, str) else value
    if turns is not None and not (isinstance(turns, list) and all(isinstance(turn, dict) for turn in turns)):
        raise DataError(where, turns, "must be a list of turns")
    return turns or []


# --- columns -----------------------------------------------------------------------------------


def _check_columns(grouped: Sequence[tuple[int, Row, list[Row]]], mapping: TicketMapping, path: Path) -> None:
    """Raise DataError for a mapped column that no row has."""
    own = {"id": mapping.id, "turns": mapping.turns, "policy": mapping.policy, "tools": mapping.tools}
    own["group"] = mapping.group
    for section in ("ticket", "privileged"):
        own.update({f"{section}.{key}": column for key, column in getattr(mapping, section).items()})
    turn = {f"turn.{key}": getattr(mapping.turn, key) for key in ("role", "content", "tool", "time")}
    if mapping.turn.call is not None:
        turn.update({f"turn.call.{key}": getattr(mapping.turn.call, key) for key in ("name", "parameters")})
    turn.update({f"turn.skip.{column}": column for column in mapping.turn.skip})
    tickets = [ticket for _, ticket, _ in grouped]
    for columns, rows in ((own, tickets), (turn, [row for _, _, turns in grouped for row in turns])):
        for key, column in columns.items():
            if isinstance(column, str):
                check_column(f"mapping: {key}", column, rows, path.name)


def _shared_value(name: str, source: str | TicketSource | None, folder: Path) -> Any:
    """Return the value that the mapping sets for all tickets, None if it is a column."""
    if not isinstance(source, TicketSource):
        return None
    text = source.text or ""
    if source.file is not None:
        try:
            text = (folder / source.file).read_text(encoding="utf-8-sig")
        except OSError as error:
            raise DataError(f"mapping: {name}.file", source.file, f"cannot be read ({error.strerror})") from error
        except UnicodeDecodeError as error:
            raise DataError(f"mapping: {name}.file", source.file, "is not UTF-8; save it as UTF-8") from error
    return parse_line(text, f"mapping: {name}") if name == "tools" else text


def _convert_ticket(
    ticket: Row,
    turns: Sequence[Row],
    mapping: TicketMapping,
    shared: Mapping[str, Any],
    where: str,
    order: DateOrder | None,
) -> tuple[dict[str, Any], int]:
    """Return (trajectory row, number of blank turns)."""
    identity = value_at(ticket, mapping.id)
    if identity in (None, ""):
        raise DataError(f"{where}: {mapping.id}", identity, "the ticket has no id; add one")
    converted, blank = _converted_turns(turns, mapping.turn, where, order)
    policy, tools = shared["policy"], shared["tools"]
    if isinstance(mapping.policy, str):
        policy = str(value_at(ticket, mapping.policy) or "")
    if isinstance(mapping.tools, str):
        tools = value_at(ticket, mapping.tools)
        tools = parse_line(tools, f"{where}: {mapping.tools}") if isinstance(tools, str) and tools else tools
    row = {"id": str(identity), "meta": group_meta(ticket, mapping.group)}
    for section in ("ticket", "privileged"):
        named = {key: value_at(ticket, column) for key, column in getattr(mapping, section).items()}
        row[section] = {key: value for key, value in named.items() if value not in (None, "")}
    return {**row, "policy": policy, "tools": tools or [], "turns": converted}, blank


def _converted_turns(
    turns: Sequence[Row], columns: TurnColumns, where: str, order: DateOrder | None
) -> tuple[list[dict[str, Any]], int]:
    found: list[dict[str, Any]] = []
    blank, before = 0, None
    for i, turn in enumerate(turns):
        if any(as_text(value_at(turn, column)) in values for column, values in columns.skip.items()):
            continue
        place = f"{where}: turns[{i}]"
        before = _later(value_at(turn, columns.time) if columns.time else None, before, place, order)
        role = _role(value_at(turn, columns.role), columns, place)
        content = value_at(turn, columns.content)
        text = "" if content is None else content
        text = text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)
        called = value_at(turn, columns.call.name) if columns.call and role == "agent" else None
        if role == "tool":
            name = value_at(turn, columns.tool) if columns.tool else None
            found.append({"role": "tool", **({"name": str(name)} if name else {}), "content": text})
        elif text.strip():
            found.append({"role": role, "content": text})
        elif not called:
            blank += 1
        if called and columns.call:
            parameters = _parameters(value_at(turn, columns.call.parameters), f"{place}.{columns.call.parameters}")
            found.append({"role": "agent", "action": "call_tool", "name": str(called), "parameters": parameters})
    return found, blank


def _later(time: Any, before: Any, place: str, order: DateOrder | None) -> Any:
    if time in (None, ""):
        return before
    try:
        if before is not None and moment(time, place, order) < moment(before, place, order):
            raise DataError(place, time, f"is earlier than the turn before it ({before}); put the turns in their order")
    except TypeError as error:
        raise DataError(place, time, f"cannot be compared with the time before it ({before!r})") from error
    return time


def as_text(value: Any) -> str:
    """Return a value as the mapping writes it: true and false in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _role(given: Any, columns: TurnColumns, place: str) -> str:
    for role, names in columns.roles.items():
        if as_text(given) in names:
            return role
    if given in ("customer", "agent", "tool"):
        return str(given)
    remedy = "unknown role; map it to customer, agent or tool in turn.roles, or leave it out in turn.skip"
    raise DataError(f"{place}.{columns.role}", given, remedy)


def _parameters(value: Any, place: str) -> dict[str, Any]:
    if value in (None, ""):
        return {}
    if isinstance(value, str):
        value = parse_line(value, place, "the call's parameters are not JSON ({})")
    if not isinstance(value, dict):
        raise DataError(place, value, "the call's parameters must be an object")
    return value
