"""Rendering of samples for the policy and the scorers. Prompts are short: each fact occurs once."""

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
# Special tokens of chat models are "<|name|>", "<name>" or "</name>". Our markup consists of tags.
_MARKUP = re.compile(r"<(?=[|｜]|/?[a-z_])", re.IGNORECASE)


def policy_messages(
    sample: ServiceSample,
    response_format: ResponseFormat = "plain",
    *,
    instruction: str = "",
) -> list[dict[str, str]]:
    """Return chat messages [{"role", "content"}] for the policy. `privileged` is never included.

    The system message contains the policy, the tools, the response instruction and the variables of the ticket. The
    parts that many samples share come first, so trainer and engine compute them once. A customer turn becomes a user
    message, an agent turn an assistant message (tool calls in the wire format), a tool result a tagged user message.
    Consecutive messages of one role are joined, since some chat templates require alternating roles. Text of customers
    and tools cannot open or close a tag. `instruction` replaces the response instruction of the format.
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
    """Return untrusted text with broken markup: `<tool_call>` becomes `< tool_call>`, `<|im_end|>` becomes `<
    |im_end|>`."""
    return _MARKUP.sub("< ", text)


def _value(value: Any) -> str:
    return _defuse(value if isinstance(value, str) else str(value))


def dialogue_text(sample: ServiceSample) -> str:
    """Return the history as plain lines, for scorers: `Customer: ...`, `Agent: ...`, `Agent calls f(a=1)`, `Tool: ...`.

    Line breaks inside a turn and its parameters become spaces, so that a turn cannot imitate another one. An empty
    history gives "". Cached for the latest samples, because the responses of a group share the history.
    """
    return _text_of(_Same(sample.history))


class _Same:
    """History as a cache key, compared by identity, because equality is expensive to check (calls have no hash)."""

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
    """Return the `dialogue_text` of a history without a sample."""
    return "\n".join(_line(turn) for turn in turns)


def _line(turn: Turn) -> str:
    if turn.tool_call is not None:
        return f"Agent calls {_one_line(_call_text(turn.tool_call))}"
    return f"{turn.role.capitalize()}: {_one_line(turn.content)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _call_text(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{key}={value}' for key, value in call.parameters.items())})"
