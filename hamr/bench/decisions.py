"""Decision points put to any kind of agent, and its answers: tools in the prompt, or as schemas next to it."""

from __future__ import annotations

import json
from typing import Any

from hamr.data.actions import ResponseFormat, customer_text, parse_action, render_requested
from hamr.data.rendering import policy_messages
from hamr.data.tools import function_schemas
from hamr.types import Answer, MalformedResponse, Question, Reply, RequestedCall, ServiceSample


def decision_question(
    sample: ServiceSample, response_format: ResponseFormat = "plain", *, native: bool, **how: Any
) -> Question:
    """Return the question for the agent's next action.

    `native`: the tools are OpenAI function schemas, and calls and results in the history are messages of their own.
    Otherwise everything is text.
    """
    messages = policy_messages(sample, response_format, native=native)
    return Question(messages=tuple(messages), tools=tuple(function_schemas(sample.tools)) if native else (), **how)


def text_and_calls(answer: Answer) -> tuple[str, tuple[RequestedCall, ...] | MalformedResponse]:
    """Return the text for the customer and the tool calls of an answer. A call that is written in the text counts too,
    as servers without a parser for tool calls return it; the text next to it is for the customer."""
    text = answer.text or ""
    if answer.tool_calls:
        return text, answer.tool_calls
    action = parse_action(text)
    if isinstance(action, MalformedResponse):
        return text, action
    if isinstance(action, Reply):
        return action.content, ()
    call = RequestedCall(name=action.name, arguments=json.dumps(dict(action.parameters), ensure_ascii=False))
    return customer_text(text), (call,)


def response_text(answer: Answer) -> str:
    """Return an answer in the wire format of actions (`hamr.data.actions`): its text, then each tool call."""
    calls = (render_requested(call.name, call.arguments) for call in answer.tool_calls)
    return "".join([answer.text or "", *calls])
