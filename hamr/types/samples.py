"""Samples: a ticket, a policy, tools, a history and references."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["customer", "agent", "tool"]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The agent says `content` to the customer."""

    content: str


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """The agent calls tool `name` with JSON-like `parameters`."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


Action = Reply | ToolCall


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One turn of a dialogue. An agent's turn that called a tool has `tool_call` and no content;
    a tool's turn has the tool's `name` and its result as `content`."""

    role: Role
    content: str = ""
    tool_call: ToolCall | None = None
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One acceptable action. `source` says where it came from: logged, consistency, utility, ..."""

    action: Action
    source: str = "logged"


@dataclass(frozen=True, kw_only=True)
class ServiceSample:
    """One decision point of a service dialogue: everything before the agent's next action.

    `ticket` holds the system variables that the policy may see. `privileged` reaches judges and the
    simulator, never the policy; its `rubric`, if there is one, is what the rubric reward judges by
    (`hamr.rewards.rubric.sample_rubric`). `meta` is free for the builder of the data.
    """

    id: str
    ticket: Mapping[str, Any]
    policy: str
    tools: tuple[Mapping[str, Any], ...]
    history: tuple[Turn, ...]
    references: tuple[Reference, ...]
    privileged: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
