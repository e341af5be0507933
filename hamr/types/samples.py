"""Samples: a ticket, a policy, tools, a history and references."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Language = Literal["en", "zh"]
Role = Literal["customer", "agent", "tool"]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """Reply to the customer with `content`."""

    content: str


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """Call of tool `name` with JSON-like `parameters`."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


Action = Reply | ToolCall


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One turn of a dialogue.

    An agent turn that calls a tool has `tool_call` and no content. A tool turn has the `name` of the tool and its
    result as `content`.
    """

    role: Role
    content: str = ""
    tool_call: ToolCall | None = None
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class Reference:
    """One acceptable action. `source` names its origin: logged, consistency, utility, ..."""

    action: Action
    source: str = "logged"


@dataclass(frozen=True, kw_only=True)
class ServiceSample:
    """One decision point of a service dialogue: everything before the agent's next action.

    `ticket` holds the system variables that the policy may see. `privileged` is visible to judges and the simulator,
    never to the policy. An optional `rubric` in it is the rubric that the rubric reward uses
    (`hamr.rewards.rubric.sample_rubric`). `meta` holds arbitrary metadata of the dataset builder. `documents` are texts
    that were retrieved for this point, for the policy.
    """

    id: str
    ticket: Mapping[str, Any]
    policy: str
    tools: tuple[Mapping[str, Any], ...]
    history: tuple[Turn, ...]
    references: tuple[Reference, ...]
    privileged: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    documents: tuple[str, ...] = ()
