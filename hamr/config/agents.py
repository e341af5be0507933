"""Options of `hamr evaluate` for the agents and policies under test, the same for every benchmark."""

from __future__ import annotations

import re
from typing import Literal

from hamr.config.section import PositiveFloat, Section, SmallInt

_FUNCTION = re.compile(r"(?:.*\.py|[A-Za-z_][\w.]*):[A-Za-z_]\w*")


def names_function(agent: str) -> bool:
    """Return whether the name of an agent is a path FILE.py:FUNCTION or MODULE:FUNCTION.

    >>> names_function("my_agent.py:reply"), names_function("scripted:perfect"), names_function("judge")
    (True, False, False)
    """
    return _FUNCTION.fullmatch(agent) is not None and not agent.startswith("scripted:")


class AnswerConfig(Section):
    """Reading of the answers of an agent."""

    fence: Literal["strip", "error"] = "error"
    """A code fence around the JSON of an answer or of its tool call. `error`: the answer is malformed, because the
    prompt asks for bare JSON, and the format errors of SAGE include fences. `strip`: the fence is removed first."""


class AgentConfig(Section):
    """Questions to the agents under test."""

    tools: Literal["prompt", "native"] | None = None
    """`native`: an agent gets the tools as OpenAI function schemas, which the chat template of a local model shows, and
    its `tool_calls` are read. `prompt`: the prompt describes the tools, and a call is a text. null: `native` for a
    function, else `prompt`."""
    agent_deadline_s: PositiveFloat = 60.0
    """Maximum duration of one call of a function. After it, the process of the function is replaced, and the outcome is
    a failure of this answer."""
    agent_processes: SmallInt = 1
    """Processes of a function. Each runs one call at a time, or 64 if the function is async."""
