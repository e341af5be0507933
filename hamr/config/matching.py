"""Leniencies in the comparison of tool calls with references."""

from __future__ import annotations

from pydantic import Field

from hamr.config.section import Section


class Leniency(Section):
    """Leniency in the parameters of a tool call. By default only equal values of equal types agree."""

    numeric_strings: bool = False
    """A number and its text agree: `"7"`, `7` and `7.0`."""
    constraints: bool = False
    """A parameter `{"op": "is_at_least", "value": 2}` of a reference is a constraint: a value that satisfies it agrees,
    and so does the same constraint. If false, it is an ordinary value, which a call has to repeat."""


class MatchingConfig(Leniency):
    """Comparison of the parameters of a tool call with those of a reference."""

    tools: dict[str, Leniency] = Field(default_factory=dict)
    """Leniencies of single tools, by their names, in place of those of all tools."""

    def of(self, tool: str) -> Leniency:
        """Return the leniency of a tool."""
        return self.tools.get(tool, self)
