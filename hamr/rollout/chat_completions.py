"""Chat completions of OpenAI's API as the policy endpoint supports them: requests, answers and streams."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from hamr.data.actions import parse_action, parse_arguments
from hamr.data.rendering import call_message
from hamr.types import MalformedResponse, Rollout, ServiceSample, ToolCall, Turn

_CALL = re.compile(r"<tool_call>.*?</tool_call>", re.DOTALL)


class _Part(BaseModel):
    type: Literal["text"]
    text: str


def _check_arguments(text: str) -> str:
    if isinstance(parse_arguments(text), MalformedResponse):
        raise ValueError("the arguments of a call are the text of a JSON object")
    return text.strip() or "{}"


class _Function(BaseModel):
    name: str
    arguments: Annotated[str, AfterValidator(_check_arguments)] = "{}"


class _Call(BaseModel):
    id: str = ""
    type: Literal["function"] = "function"
    function: _Function


class _Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the message as chat templates expect it, with one text as content."""
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role
        return {**self.model_dump(exclude_none=True), "role": role, "content": text}


class _ToolFunction(BaseModel, extra="allow"):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = Field(default_factory=dict)


class _Tool(BaseModel):
    type: Literal["function"] = "function"
    function: _ToolFunction


class _StreamOptions(BaseModel):
    include_usage: bool = False


def _refuse_stop(given: str | list[str] | None) -> None:
    if given:
        raise ValueError("a turn cannot be cut, because all its sampled tokens are trained; cut it in the harness")


class ChatRequest(BaseModel):
    """Fields that change the form of the answer have only the values that the endpoint supports."""

    model: str = "policy"
    messages: list[_Message] = Field(min_length=1)
    tools: list[_Tool] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: Literal[1] | None = None
    logprobs: Literal[False] | None = None
    functions: None = None
    response_format: dict[Literal["type"], Literal["text"]] | None = None
    stop: Annotated[str | list[str] | None, AfterValidator(_refuse_stop)] = None

    @property
    def shown_tools(self) -> tuple[dict[str, Any], ...]:
        """The tools that the policy sees."""
        return () if self.tool_choice == "none" else tuple(tool.model_dump() for tool in self.tools or ())


def completion(rollout: Rollout, request: ChatRequest, first_call: int) -> dict[str, Any]:
    """Return the answer to a request. `first_call`: the number of the first tool call, which its id has."""
    content, calls = read_calls(rollout.text) if request.shown_tools else (rollout.text, [])
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        numbered = enumerate(calls, start=first_call)
        message["tool_calls"] = [call_message(call, f"call{n:05d}")["tool_calls"][0] for n, call in numbered]
    finish = "length" if rollout.finish_reason == "length" else "tool_calls" if calls else "stop"
    asked, sampled = len(rollout.prompt_ids), len(rollout.token_ids)
    return {
        "id": f"chatcmpl-{rollout.key.turn}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": {"prompt_tokens": asked, "completion_tokens": sampled, "total_tokens": asked + sampled},
    }


def events(answer: Mapping[str, Any], request: ChatRequest) -> str:
    """Return a chat completion as the text of a stream of events, with the whole turn in one."""
    [choice] = answer["choices"]
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(delta["tool_calls"])]
    last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    parts: list[dict[str, Any]] = [{"choices": [{**last, "delta": delta, "finish_reason": None}]}, {"choices": [last]}]
    if request.stream_options is not None and request.stream_options.include_usage:
        parts.append({"choices": [], "usage": answer["usage"]})
    same = {**{key: answer[key] for key in ("id", "created", "model")}, "object": "chat.completion.chunk"}
    lines = [*(json.dumps(same | part) for part in parts), "[DONE]"]
    return "".join(f"data: {line}\n\n" for line in lines)


def read_calls(text: str) -> tuple[str | None, list[ToolCall]]:
    """Return the text before the tool calls of a response, None if there is none, and the calls.

    A response with a malformed call is a text, as in servers for inference.

    >>> read_calls('Wait.<tool_call>{"name": "find", "arguments": {"n": 7}}</tool_call>')
    ('Wait.', [ToolCall(name='find', parameters={'n': 7})])
    """
    found = [parse_action(call) for call in _CALL.findall(text)]
    calls = [call for call in found if isinstance(call, ToolCall)]
    if not calls or len(calls) < len(found):
        return text, []
    return text[: text.index("<tool_call>")].strip() or None, calls


def request_point(
    sample: ServiceSample, messages: Sequence[Mapping[str, Any]], tools: tuple[Mapping[str, Any], ...]
) -> ServiceSample:
    """Return the sample with the conversation of a request, as scorers see it."""
    policy, history, names = list[str](), list[Turn](), dict[str, str]()
    for message in messages:
        role, text = message["role"], message["content"]
        if role == "system":
            policy.append(text)
        elif role == "tool":
            name = message.get("name") or names.get(message.get("tool_call_id", ""))
            history.append(Turn(role="tool", name=name, content=text))
        elif text:
            history.append(Turn(role="agent" if role == "assistant" else "customer", content=text))
        for call in message.get("tool_calls", ()):
            function = call["function"]
            names[call["id"]] = function["name"]
            called = ToolCall(name=function["name"], parameters=json.loads(function["arguments"]))
            history.append(Turn(role="agent", tool_call=called))
    return replace(sample, policy="\n".join(policy), tools=tools, history=tuple(history))
