"""Mapping file of `hamr data import tickets`: the columns of an export and their meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from hamr.config.section import Section

ColumnName = Annotated[str, StringConstraints(min_length=1)]
"""A column, or a path into an object in a column: `customer.tier`."""


class TicketSource(Section):
    """A common value of all tickets: a text (or, for tools, JSON), given here or in a file next to the mapping."""

    text: str | None = None
    file: str | None = None

    @model_validator(mode="after")
    def _one(self) -> TicketSource:
        if (self.text is None) == (self.file is None):
            raise ValueError("give one of text and file")
        return self


ColumnOrSource = Annotated[
    Annotated[ColumnName, Tag("[column]")] | Annotated[TicketSource, Tag("[source]")],
    Discriminator(lambda value: "[source]" if isinstance(value, Mapping | TicketSource) else "[column]"),
]


class CallColumns(Section):
    """Columns of the tool call of a turn. `parameters` contains an object, or one as JSON text."""

    name: ColumnName
    parameters: ColumnName


class TurnColumns(Section):
    """Columns of a turn. `roles` maps roles to the names in the export; unlisted names are used unchanged.

    `time` is optional and must not decrease within a ticket: numbers, ISO 8601, or dates with the day or the month
    first. `tool` is the column with the name of the tool in a tool turn. `skip` leaves out turns by the values of a
    column, for example internal notes: `{private: ["true"], role: [system]}`.
    """

    role: ColumnName
    content: ColumnName
    roles: Mapping[Literal["customer", "agent", "tool"], tuple[str, ...]] = Field(default_factory=dict)
    call: CallColumns | None = None
    tool: ColumnName | None = None
    time: ColumnName | None = None
    skip: Mapping[ColumnName, tuple[str, ...]] = Field(default_factory=dict)


class TicketMapping(Section):
    """Mapping of an export.

    `turns` names the column with the turns of a ticket, as a list or as JSON text of one. Without it every row of the
    export is one turn, and the rows of one `id` form a ticket, in the order of the file. Tickets with the same `group`,
    for example a customer, are in one split. `ticket` and `privileged` map the keys of the sample to columns of the
    ticket; of several rows the first value that is not empty counts.
    """

    id: ColumnName
    turn: TurnColumns
    turns: ColumnName | None = None
    group: ColumnName | None = None
    ticket: Mapping[str, ColumnName] = Field(default_factory=dict)
    privileged: Mapping[str, ColumnName] = Field(default_factory=dict)
    policy: ColumnOrSource = TicketSource(text="")
    tools: ColumnOrSource | None = None
