"""The questions of the consistency scorers: one dialogue, the reference's statement, the response's statement."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hamr.types import Question, Reply, ServiceSample, Turn

_SPEAKERS = {"customer": "Customer", "agent": "Agent", "tool": "Tool"}


def dialogue_text(history: Sequence[Turn]) -> str:
    """The dialogue as a scorer reads it, one turn a line; an empty history gives an empty text.

    >>> print(dialogue_text((Turn(role="customer", content="Where is it?"),)))
    Customer: Where is it?
    """
    return "\n".join(line for turn in history for line in _lines(turn))


def consistency_question(sample: ServiceSample, reference: Reply, reply: Reply) -> Question:
    """Does `reply` lead the customer the same way as `reference` at this point of the dialogue?

    The variables that the responses of a group share come first in every template, and the sample's id as
    affinity keeps the group on one replica while its load allows: its prompt prefix is computed once.
    """
    return Question(
        variables={
            "history": dialogue_text(sample.history),
            "statement_a": reference.content,
            "statement_b": reply.content,
        },
        affinity=sample.id,
    )


def _lines(turn: Turn) -> list[str]:
    speaker = f"{_SPEAKERS[turn.role]} {turn.name}" if turn.role == "tool" and turn.name else _SPEAKERS[turn.role]
    lines = [f"{speaker}: {turn.content}"] if turn.content or turn.tool_call is None else []
    if turn.tool_call is not None:
        arguments = json.dumps(dict(turn.tool_call.parameters), ensure_ascii=False, sort_keys=True)
        lines.append(f"{speaker} calls {turn.tool_call.name} {arguments}")
    return lines
