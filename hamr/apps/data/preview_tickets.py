"""`hamr data import tickets --preview`: a proposed mapping and three samples. It writes nothing."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import yaml

from hamr.data.importers.imported import Imported
from hamr.data.proposal import Proposal, propose_mapping
from hamr.data.samples import action_json, turn_json
from hamr.data.tables import ExportTable, Row, read_table
from hamr.data.tickets import read_tickets
from hamr.errors import DataError
from hamr.types import ServiceSample

if TYPE_CHECKING:
    from hamr.apps.data.import_command import PreviewTickets

_SAMPLES = 3
_TICKETS = 300
"""Tickets that are read, so that a preview is quick."""
_LONGEST = 400
"""Characters of a shown text."""


def preview_tickets(command: PreviewTickets) -> int:
    """Print a proposed mapping file: other lines than its YAML are comments. Raises DataError."""
    table = read_table(command.input, encoding=command.encoding, delimiter=command.delimiter)
    if not table.rows:
        first = f"; the first line: {table.faults[0].message}" if table.faults else "; give an export with rows"
        raise DataError("input", str(command.input), f"contains no ticket{first}")
    rows = _untorn_rows(table) or table.rows
    proposal = propose_mapping([row for _, row in rows], str(command.input), command.dates)
    tickets = read_tickets(
        command.input,
        proposal.ticket_mapping,
        folder=command.input.parent,
        hide=command.pii != "keep",
        encoding=command.encoding,
        delimiter=command.delimiter,
        dates=command.dates,
        most=_TICKETS,
    )
    lines = [rows[row][0] for row in proposal.bad_parameters]
    for line in _lines(command, proposal, tickets, lines):
        print(line)
    return 0


def _untorn_rows(table: ExportTable) -> list[tuple[int, Row]]:
    """Return the rows without pairs that are one row of a CSV, torn by a line break in a text without quotes: their
    values would be taken for those of other columns."""
    torn: set[int] = set()
    for (line, row), (following, rest) in pairwise(table.rows):
        fields = sum(value is not None for value in (*row.values(), *rest.values()))
        if {line, following} <= table.short and fields == len(row) + 1:
            torn |= {line, following}
    return [(line, row) for line, row in table.rows if line not in torn]


def _lines(
    command: PreviewTickets, proposal: Proposal, tickets: Imported, bad_parameters: Sequence[int]
) -> Iterator[str]:
    samples = tickets.samples
    yield f"# Proposed for {command.input}, read as {tickets.form}."
    if samples:
        yield f"# The first {len(tickets.trajectories)} tickets are {len(samples)} samples."
    else:
        yield "# Warning: 0 samples. No ticket has an agent's turn after one of the customer; check turn.roles."
    yield "# Check the mapping, save it as map.yaml, then:"
    yield f"# hamr data import tickets input={command.input} mapping=map.yaml output=FOLDER"
    yield yaml.safe_dump(
        dict(proposal.mapping), sort_keys=False, default_flow_style=None, allow_unicode=True, width=110
    ).rstrip()
    if proposal.unused:
        yield from _comment(f"Columns that are not used: {', '.join(proposal.unused)}")
    if proposal.unordered:
        yield from _comment(
            f"Warning: the rows of a ticket are not in the order of {proposal.unordered}; sort the file by it, and "
            "preview it again"
        )
    if proposal.unread:
        column, value = proposal.unread
        yield from _comment(
            f"Warning: without turn.time: {column} has {value!r}, which is not read as a time; write times as ISO 8601 "
            "(2026-01-31 13:05), or check that the rows of a ticket are in order"
        )
    if "policy" not in proposal.mapping:
        yield "# Without a policy; a text for all tickets: policy: {file: policy.txt}"
    if bad_parameters:
        column = f"{command.input}:{bad_parameters[0]}: {proposal.mapping['turn']['call']['parameters']}"
        more = f" (and {len(bad_parameters) - 1} more)" if len(bad_parameters) > 1 else ""
        yield from _comment(f"{column}: the call's parameters are not a JSON object; correct them{more}")
    if tickets.faults:
        yield from _comment(f"Left out: {len(tickets.faults)} tickets; the first: {tickets.faults[0].message}")
    for sample in _choose_samples(samples):
        yield "#"
        yield from _comment(f"sample {sample.id}: {json.dumps(dict(sample.ticket), ensure_ascii=False)}")
        for turn in sample.history:
            row = turn_json(turn)
            yield from _comment(f"  {row.pop('role')}: {row.get('content') or json.dumps(row, ensure_ascii=False)}")
        action = action_json(sample.references[0].action)
        yield from _comment(
            f"  agent, the reference: {action.get('content') or json.dumps(action, ensure_ascii=False)}"
        )


def _choose_samples(samples: Sequence[ServiceSample]) -> list[ServiceSample]:
    """Return samples of different tickets where there are enough."""
    first = {sample.meta["dialogue"]: sample for sample in reversed(samples)}
    chosen = {sample.id for sample in first.values()}
    ordered = [*reversed(first.values()), *(sample for sample in samples if sample.id not in chosen)]
    return ordered[:_SAMPLES]


def _comment(text: str) -> Iterator[str]:
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
    for line in textwrap.wrap(short, 116, subsequent_indent="    ", drop_whitespace=True) or [""]:
        yield f"# {line}"
