"""The mapping file of `hamr data import tickets`: which column of an export holds what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from hamr.config.section import Section

Column = Annotated[str, StringConstraints(min_length=1)]
"""A column, or a path into an object that a column holds: `customer.tier`."""


class TicketSource(Section):
    """What all tickets share: a text (or, for tools, JSON) as it stands here or in a file beside the mapping."""

    text: str | None = None
    file: str | None = None

    @model_validator(mode="after")
    def _one(self) -> TicketSource:
        if (self.text is None) == (self.file is None):
            raise ValueError("give either text or file")
        return self


class CallColumns(Section):
    """Where a turn says that it called a tool. `parameters` holds an object, or one as JSON text."""

    name: Column
    parameters: Column


class TurnColumns(Section):
    """Columns of a turn. `roles` says which of the export's names are whose; unlisted names are taken as they are.

    `time`, if there is one, must not go back within a ticket: numbers, or texts that sort (ISO 8601).
    `tool` is the column with the tool's name in a tool's own turn.
    """

    role: Column
    content: Column
    roles: Mapping[Literal["customer", "agent", "tool"], tuple[str, ...]] = Field(default_factory=dict)
    call: CallColumns | None = None
    tool: Column | None = None
    time: Column | None = None


class TicketMapping(Section):
    """`turns` names the column that holds a ticket's turns, as a list or as JSON text of one. Without it every row of
    the export is one turn, and the rows of one `id` are a ticket, in the file's order.

    `ticket` and `privileged` name what of the ticket goes where: the key there -> the column here.
    """

    id: Column
    turn: TurnColumns
    turns: Column | None = None
    ticket: Mapping[str, Column] = Field(default_factory=dict)
    privileged: Mapping[str, Column] = Field(default_factory=dict)
    policy: Column | TicketSource = TicketSource(text="")
    tools: Column | TicketSource | None = None
