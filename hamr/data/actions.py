"""The wire format of an action, both directions.

A reply to the customer is plain text. A tool call is what Qwen3 speaks natively:

    <tool_call>{"name": "lookup", "arguments": {"order": 7}}</tool_call>

Text beside one tool call is allowed and the tool call is the action. With a rationale the action sits in
<answer>..</answer> and its rationale in <think>..</think>: the rationale first where `think_answer` is asked for
(pre-CoT), the action first with `answer_think` (post-CoT). An action in the other order is still taken; the order is
for the format reward to mind.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Literal, NoReturn

from hamr.errors import DataError
from hamr.types import Action, MalformedResponse, Reply, ToolCall

ResponseFormat = Literal["plain", "think_answer", "answer_think"]
ANSWER_END = "</answer>"

MAX_DEPTH = 64
"""Of a tool call's arguments. What compares, stores and shows them goes down level by level; Python ends at some
hundreds, and a policy's text must not be able to end a router."""

_TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<answer>", "</answer>")
_MARKUP = re.compile(r"<(?=[|｜]|/?[a-z_])", re.IGNORECASE)
_CALL = re.compile(r"<tool_call>(.*)</tool_call>", re.DOTALL)
_THINK_FIRST = re.compile(r"\s*<think>(?P<thought>.*)</think>\s*<answer>(?P<answer>.*)</answer>\s*", re.DOTALL)
_ANSWER_FIRST = re.compile(
    r"\s*<answer>(?P<answer>.*)</answer>\s*<think>(?P<thought>(?:(?!</think>).)*)(?:</think>\s*)?", re.DOTALL
)


def render_action(action: Action, response_format: ResponseFormat = "plain", thought: str = "") -> str:
    """The text that a policy has to say to take `action`.

    `thought` belongs to the formats that have a place for it.
    Raises DataError for what could not be read back: an empty reply or one with a tag of the format in it,
    a tool without a name, parameters that are not JSON, a thought where the format has no place for it.

    >>> render_action(ToolCall(name="lookup", parameters={"order": 7}))
    '<tool_call>{"name": "lookup", "arguments": {"order": 7}}</tool_call>'
    """
    body = _render_call(action) if isinstance(action, ToolCall) else _checked_text("reply", action.content)
    if not body:
        raise DataError("reply", action, "an empty reply is no action; give it some content")
    if response_format == "plain":
        if thought:
            raise DataError("thought", thought, "the plain format has no place for it; use 'think_answer'")
        return body
    think = f"<think>{_checked_text('thought', thought)}</think>"
    answer = f"<answer>{body}</answer>"
    return answer + think if response_format == "answer_think" else think + answer


def parse_action(text: str, response_format: ResponseFormat = "plain") -> Action | MalformedResponse:
    """The action that `text` takes, or why it is none. Never raises, whatever the text.

    Malformed: nothing in it; a tag without its partner; several tool calls; JSON that cannot be read, that has
    no name, or whose arguments are no object or nested beyond reason; with `think_answer` anything outside the two
    blocks or a missing block. A <think> that is cut off after a complete <answer> is fine: the action was already
    there. With `answer_think` all is settled at the end of the <answer> block that the response begins with: whatever
    follows, nothing at all included, changes neither the action nor whether there is one.
    """
    answer = answer_of(text, response_format)
    if isinstance(answer, MalformedResponse):
        return answer
    if not answer:
        return MalformedResponse(detail="empty response")
    opened, closed = answer.count("<tool_call>"), answer.count("</tool_call>")
    if not opened and not closed:
        return Reply(content=answer) if _encodable(answer) else MalformedResponse(detail="not valid Unicode")
    if opened > 1 or closed > 1:
        return MalformedResponse(detail=f"{max(opened, closed)} tool calls; one is allowed")
    found = _CALL.search(answer)
    if found is None:
        return MalformedResponse(detail="unclosed tool_call tag")
    return _parse_call(found.group(1))


def answer_of(text: str, response_format: ResponseFormat = "plain") -> str | MalformedResponse:
    """The part of a response that acts: all of it in `plain`, else the inside of <answer>; trimmed."""
    if response_format == "plain":
        return text.strip()
    if response_format == "answer_think" and text.lstrip().startswith("<answer>"):
        return _first_answer(text)
    for tag in ("<think>", "<answer>", "</answer>"):
        if text.count(tag) != 1:
            return MalformedResponse(detail=f"{text.count(tag)} x {tag}; exactly one is needed")
    if text.count("</think>") > 1:
        return MalformedResponse(detail="several </think>")
    found = _THINK_FIRST.fullmatch(text) or _ANSWER_FIRST.fullmatch(text)
    if found is None:
        return MalformedResponse(detail="text outside <think>..</think> and <answer>..</answer>, or a crossed pair")
    return found.group("answer").strip()


def _first_answer(text: str) -> str | MalformedResponse:
    """The inside of the block that the text begins with, whatever comes behind it."""
    answer, end, _ = text.lstrip().removeprefix("<answer>").partition(ANSWER_END)
    if not end:
        return MalformedResponse(detail="0 x </answer>; one is needed")
    crossed = next((tag for tag in ("<think>", "</think>", "<answer>") if tag in answer), None)
    if crossed is not None:
        return MalformedResponse(detail=f"{crossed} inside the answer")
    return answer.strip()


def acting_text(text: str, response_format: ResponseFormat) -> str:
    """What a response is judged by: all of it, or with `answer_think` what it says up to its answer's end."""
    if response_format != "answer_think" or not text.lstrip().startswith("<answer>"):
        return text
    answer, end, _ = text.partition(ANSWER_END)
    return answer + end


def in_order(text: str, response_format: ResponseFormat) -> bool:
    """Whether a response that is an action begins with the block that the prompt asked for first."""
    first = {"plain": "", "think_answer": "<think>", "answer_think": "<answer>"}[response_format]
    return text.lstrip().startswith(first)


def customer_text(text: str, response_format: ResponseFormat = "plain") -> str:
    """What a customer would get to read: the answer without its tool call, or the whole text if it is malformed."""
    answer = answer_of(text, response_format)
    return text.strip() if isinstance(answer, MalformedResponse) else _CALL.sub("", answer).strip()


def _render_call(call: ToolCall) -> str:
    if not call.name.strip():
        raise DataError("tool call", call.name, "a tool call needs a name")
    try:
        body = json.dumps({"name": call.name, "arguments": dict(call.parameters)}, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DataError("tool call", call.name, f"its parameters are not JSON ({error})") from error
    # Every "<" of a JSON text is inside a string, so escaping it keeps the value and hides tags and special tokens.
    hidden = _MARKUP.sub(r"\\u003c", body)
    return f"<tool_call>{hidden}</tool_call>"


def _checked_text(what: str, text: str) -> str:
    tag = next((tag for tag in _TAGS if tag in text), None)
    if tag is not None:
        raise DataError(what, text, f"{tag} belongs to the wire format; remove it from the text")
    return text.strip()


def _parse_call(body: str) -> Action | MalformedResponse:
    try:
        call = json.loads(body, parse_constant=_refuse_constant, parse_float=_finite)
        readable = _encodable(json.dumps(call, ensure_ascii=False))
    except (ValueError, RecursionError) as error:
        return MalformedResponse(detail=f"tool call is not JSON: {str(error)[:80]}")
    if not readable:
        return MalformedResponse(detail="tool call is not valid Unicode")
    if not isinstance(call, dict):
        return MalformedResponse(detail="tool call is not an object")
    name = call.get("name")
    if not isinstance(name, str) or not name.strip():
        return MalformedResponse(detail="tool call without a name")
    if "arguments" in call and "parameters" in call:
        return MalformedResponse(detail="tool call with both arguments and parameters")
    arguments: Any = call.get("arguments", call.get("parameters", {}))
    if not isinstance(arguments, dict):
        return MalformedResponse(detail="tool call whose arguments are not an object")
    if _deeper(arguments, MAX_DEPTH):
        return MalformedResponse(detail=f"tool call nested more than {MAX_DEPTH} deep")
    return ToolCall(name=name.strip(), parameters=arguments)


def _deeper(value: Any, most: int) -> bool:
    """Whether lists and objects stand in one another more than `most` deep."""
    level = [value]
    for _ in range(most):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return any(isinstance(value, dict | list) for value in level)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is out of range")
    return value


def _encodable(text: str) -> bool:
    """Lone surrogates can be neither stored nor sent; json.loads makes them from escapes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
