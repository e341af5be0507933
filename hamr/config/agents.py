"""Options of `hamr evaluate` for the agents and policies under test, the same for every benchmark."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict

from hamr.config.section import Section


class AnswerConfig(Section):
    """Reading of the answers of an agent."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    fence: Literal["strip", "error"] = "error"
    """A code fence around the JSON or the tool call of an answer. `error`: the answer is unreadable, because the prompt
    asks for bare JSON, and the format errors of SAGE include fences. `strip`: the fence is removed first."""
