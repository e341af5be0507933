"""Rendering of samples for the policy and the scorers. Prompts are short: each fact occurs once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hamr.data.actions import ResponseFormat, render_action, render_requested
from hamr.data.tools import compact
from hamr.prompting.role_tokens import ROLE_TOKEN
from hamr.types import ServiceSample, ToolCall, Turn

_OPENING = re.compile(r"[<＜﹤](?=[|｜]|/?[a-z_])", re.IGNORECASE)
"""Start of a tag or a special token. Some tokenizers normalise compatibility characters before they look for one."""
_CALL = '<tool_call>{"name", "arguments"}</tool_call>'
_INSTRUCTION = {
    "plain": f"Answer with a short reply or {_CALL}",
    "think_answer": f"First think, then act: <think>...</think><answer>a short reply or {_CALL}</answer>",
    "answer_think": f"First act, then say why: <answer>a short reply or {_CALL}</answer><think>...</think>",
}


def policy_messages(
    sample: ServiceSample,
    response_format: ResponseFormat = "plain",
    *,
    instruction: str = "",
    native: bool = False,
) -> list[dict[str, Any]]:
    """Return chat messages [{"role", "content"}] for the policy. `privileged` is never included.

    The system message contains the policy, the tools, the response instruction, the variables of the ticket and the
    retrieved documents. The parts that many samples share come first, so trainer and engine compute them once. A
    customer turn becomes a user message, an agent turn an assistant message (tool calls in the wire format), a tool
    result a tagged user message. Consecutive messages of one role are joined, since some chat templates require
    alternating roles. Text of customers and tools cannot open or close a tag. `instruction` replaces the response
    instruction of the format.

    With `native`, a sample with tools becomes the messages of an OpenAI chat request, whose `tools` are
    `hamr.data.tools.function_schemas`: the chat template shows the tools and asks for calls in its own form, calls are
    `tool_calls` of assistant messages, results are messages of the role `tool`.
    """
    native = native and bool(sample.tools)
    asked = instruction or ("" if native and response_format == "plain" else _INSTRUCTION[response_format])
    system = _system(sample, asked, native)
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    calls = _CallIds()
    for turn in sample.history:
        role = "assistant" if turn.role == "agent" else "user"
        message = (_native_message(turn, calls) if native else None) or {"role": role, "content": _message(turn)}
        last = messages[-1] if messages else {}
        if last.get("role") != message["role"] or message["role"] == "tool":
            messages.append(message)
        elif "tool_calls" in message:
            last.setdefault("tool_calls", []).extend(message["tool_calls"])
        elif "tool_calls" in last:
            messages.append(message)
        else:
            last["content"] += f"\n{message['content']}"
    return messages


def request_texts(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Return the messages of an OpenAI request as texts, for a chat template without tools.

    Tools, calls and results have the form of `policy_messages`. Other texts are unchanged.
    """
    found: list[dict[str, Any]] = []
    for message in messages:
        role, text = message["role"], message.get("content") or ""
        for call in message.get("tool_calls") or ():
            text += render_requested(call["function"]["name"], call["function"]["arguments"])
        if role == "tool":
            role, text = "user", f"<tool_result>{_defuse(text)}</tool_result>"
            if found and found[-1]["content"].endswith("</tool_result>"):
                text = f"{found.pop()['content']}\n{text}"
        found.append({"role": role, "content": text})
    if tools:
        shown = "\n".join(["Tools: " + "; ".join(compact(tool) for tool in tools), _INSTRUCTION["plain"]])
        if found and found[0]["role"] == "system":
            shown = f"{found.pop(0)['content']}\n{shown}"
        found.insert(0, {"role": "system", "content": shown})
    return found


def _system(sample: ServiceSample, instruction: str, native: bool) -> str:
    parts = [sample.policy.strip()]
    if sample.tools and not native:
        parts.append("Tools: " + "; ".join(compact(tool) for tool in sample.tools))
    parts.append(instruction)
    if sample.ticket:
        parts.append("Ticket: " + ", ".join(f"{key}={_defuse(str(value))}" for key, value in sample.ticket.items()))
    if sample.documents:
        parts.append(f"Documents:\n{documents_text(sample)}")
    return "\n".join(part for part in parts if part)


def documents_text(sample: ServiceSample) -> str:
    """Return the retrieved documents as numbered lines, with broken markup."""
    return "\n".join(f"{i}. {_defuse(one_line(text))}" for i, text in enumerate(sample.documents, start=1))


class _CallIds:
    """Ids that link calls and their results: nine letters and digits, which every chat template accepts."""

    def __init__(self) -> None:
        self._made = 0
        self._open: list[tuple[str, str]] = []

    def of_call(self, name: str) -> str:
        self._made += 1
        self._open.append((f"call{self._made:05d}", name))
        return self._open[-1][0]

    def of_result(self, turn: Turn) -> dict[str, str]:
        """Return id and tool name of the earliest call of this tool without a result, else of the earliest call."""
        if not self._open:
            self.of_call(turn.name or "unknown")
        call, name = next((call for call in self._open if call[1] == turn.name), self._open[0])
        self._open.remove((call, name))
        return {"tool_call_id": call, "name": turn.name or name}


def call_message(call: ToolCall, call_id: str = "call00001") -> dict[str, Any]:
    """Return the message of an OpenAI request that calls a tool."""
    arguments = json.dumps(dict(call.parameters), ensure_ascii=False)
    function = {"name": call.name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def _native_message(turn: Turn, calls: _CallIds) -> dict[str, Any] | None:
    """Return the message of a call or of its result. None for other turns."""
    if turn.tool_call is not None:
        call = ToolCall(name=turn.tool_call.name, parameters=_defuse_all(turn.tool_call.parameters))
        return call_message(call, calls.of_call(call.name))
    if turn.role == "tool":
        return {"role": "tool", **calls.of_result(turn), "content": _defuse(turn.content)}
    return None


def _defuse_all(value: Any) -> Any:
    """Return JSON with broken markup in all of its texts."""
    if isinstance(value, Mapping):
        return {_defuse(key): _defuse_all(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_defuse_all(inner) for inner in value]
    return _defuse(value) if isinstance(value, str) else value


def _message(turn: Turn) -> str:
    if turn.tool_call is not None:
        return render_action(turn.tool_call)
    if turn.role == "tool":
        return f"<tool_result>{_defuse(turn.content)}</tool_result>"
    return _defuse(turn.content)


def _defuse(text: str) -> str:
    """Return untrusted text with broken markup: `<tool_call>` becomes `< tool_call>`, and `[INST]` `[ INST]`."""
    return ROLE_TOKEN.sub("[ ", _OPENING.sub("< ", text))


def dialogue_text(sample: ServiceSample) -> str:
    """Return the history as plain lines, for scorers: `Customer: ...`, `Agent: ...`, `Agent calls f(a=1)`, `Tool: ...`.

    Line breaks inside a turn and its parameters become spaces, so that a turn cannot imitate another one. An empty
    history gives "".
    """
    return turns_text(sample.history)


def turns_text(turns: Sequence[Turn]) -> str:
    """Return the `dialogue_text` of a history without a sample."""
    return "\n".join(_line(turn) for turn in turns)


def _line(turn: Turn) -> str:
    if turn.tool_call is not None:
        call = turn.tool_call
        return "Agent calls " + one_line(f"{call.name}({', '.join(f'{k}={v}' for k, v in call.parameters.items())})")
    return f"{turn.role.capitalize()}: {one_line(turn.content)}"


def one_line(text: str) -> str:
    """Return a text as one line, so that it cannot imitate another turn."""
    return " ".join(text.split())
