"""What the policy and the scorers get to read of a sample. Tokens are the budget: a prompt says each thing once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from hamr.data.actions import ResponseFormat, render_action
from hamr.data.tools import compact
from hamr.types import ServiceSample, ToolCall, Turn

_CALL = '<tool_call>{"name", "arguments"}</tool_call>'
_INSTRUCTION = {
    "plain": f"Answer with a short reply or {_CALL}",
    "think_answer": f"First think, then act: <think>...</think><answer>a short reply or {_CALL}</answer>",
    "answer_think": f"First act, then say why: <answer>a short reply or {_CALL}</answer><think>...</think>",
}
# Special tokens of chat models are "<|name|>", "<name>" or "</name>"; ours are tags.
_MARKUP = re.compile(r"<(?=[|｜]|/?[a-z_])", re.IGNORECASE)


def policy_messages(
    sample: ServiceSample,
    response_format: ResponseFormat = "plain",
    *,
    instruction: str = "",
) -> list[dict[str, str]]:
    """Chat messages [{"role", "content"}] for the policy; `privileged` is never among them.

    The system message has the policy, the tools, how to answer and the ticket's variables: what many samples have in
    common comes first, and is then computed once by trainer and engine. A customer's turn becomes a user's, an agent's
    an assistant's (tool calls in the wire form), a tool's result a tagged user's. Neighbours of one role are joined,
    since some chat templates demand that roles alternate. What customers and tools wrote cannot open or close a tag.
    `instruction` stands in for the format's words on how to answer.
    """
    messages = [{"role": "system", "content": _system(sample, instruction or _INSTRUCTION[response_format])}]
    for turn in sample.history:
        role = "assistant" if turn.role == "agent" else "user"
        content = _message(turn)
        if messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n{content}"
        else:
            messages.append({"role": role, "content": content})
    return messages


def _system(sample: ServiceSample, instruction: str) -> str:
    parts = [sample.policy.strip()]
    if sample.tools:
        parts.append("Tools: " + "; ".join(compact(tool) for tool in sample.tools))
    parts.append(instruction)
    if sample.ticket:
        parts.append("Ticket: " + ", ".join(f"{key}={_value(value)}" for key, value in sample.ticket.items()))
    return "\n".join(part for part in parts if part)


def _message(turn: Turn) -> str:
    if turn.tool_call is not None:
        return render_action(turn.tool_call)
    if turn.role == "tool":
        return f"<tool_result>{_defuse(turn.content)}</tool_result>"
    return _defuse(turn.content)


def _defuse(text: str) -> str:
    """Untrusted text without working markup: `<tool_call>` becomes `< tool_call>`, `<|im_end|>` `< |im_end|>`."""
    return _MARKUP.sub("< ", text)


def _value(value: Any) -> str:
    return _defuse(value if isinstance(value, str) else str(value))


def dialogue_text(sample: ServiceSample) -> str:
    """The history as plain lines, for scorers: `Customer: ...`, `Agent: ...`, `Agent calls f(a=1)`, `Tool: ...`.

    Line breaks inside a turn, its parameters included, become spaces, so that a turn cannot pose as another
    one. Empty history: "". Kept for the samples asked about last: a group's responses share theirs.
    """
    return _text_of(_Same(sample.history))


class _Same:
    """A history as a cache's key: the very same one, since an equal one is dear to find (calls have no hash)."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.turns = turns

    def __hash__(self) -> int:
        return id(self.turns)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.turns is other.turns


@lru_cache(maxsize=64)
def _text_of(same: _Same) -> str:
    return turns_text(same.turns)


def turns_text(turns: Sequence[Turn]) -> str:
    """`dialogue_text` of a history that stands alone."""
    return "\n".join(_line(turn) for turn in turns)


def _line(turn: Turn) -> str:
    if turn.tool_call is not None:
        return f"Agent calls {_one_line(_call_text(turn.tool_call))}"
    return f"{turn.role.capitalize()}: {_one_line(turn.content)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _call_text(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{key}={value}' for key, value in call.parameters.items())})"
