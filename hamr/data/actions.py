"""Wire format of an action: rendering and parsing.

A reply to the customer is plain text. A tool call has Qwen3's native format:

    <tool_call>{"name": "lookup", "arguments": {"order": 7}}</tool_call>

Text next to one tool call is allowed; the tool call is the action. With a rationale, the action is in
<answer>..</answer> and its rationale in <think>..</think>: the rationale first with `think_answer` (pre-CoT), the
action first with `answer_think` (post-CoT). An action in the other order is still parsed; the format reward checks the
order.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Literal

from hamr.errors import DataError
from hamr.files import encodable, refuse_constant
from hamr.types import Action, MalformedResponse, Reply, ToolCall

ResponseFormat = Literal["plain", "think_answer", "answer_think"]
ANSWER_END = "</answer>"

MAX_DEPTH = 64
"""Maximum depth of the arguments of a tool call. They are compared, stored and shown recursively, Python limits the
recursion to some hundreds of levels, and a policy's text must not be able to crash a router."""

_TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<answer>", "</answer>")
MARKUP = re.compile(r"<(?=[|｜]|/?[a-z_])", re.IGNORECASE)
"""Start of a tag or of a special token of a chat model: "<|name|>", "<name>" or "</name>"."""
_CALL = re.compile(r"<tool_call>(.*)</tool_call>", re.DOTALL)
_FENCED = re.compile(
    r"(\A|</think>|<answer>|<tool_call>)\s*```[\w-]*\s*(?=[{<])((?:(?!```).)*)```\s*(?=\Z|</answer>|</tool_call>)",
    re.DOTALL,
)
_THINK_FIRST = re.compile(r"\s*<think>(?P<thought>.*)</think>\s*<answer>(?P<answer>.*)</answer>\s*", re.DOTALL)
_ANSWER_FIRST = re.compile(
    r"\s*<answer>(?P<answer>.*)</answer>\s*<think>(?P<thought>(?:(?!</think>).)*)(?:</think>\s*)?", re.DOTALL
)


def render_action(action: Action, response_format: ResponseFormat = "plain", thought: str = "") -> str:
    """Return the text with which a policy takes `action`.

    `thought` is for the formats with a rationale. Raises DataError for an action that could not be parsed back: an
    empty reply or one with a tag of the format, a tool without a name, parameters that are not JSON, or a thought in a
    format without a rationale.

    >>> render_action(ToolCall(name="lookup", parameters={"order": 7}))
    '<tool_call>{"name": "lookup", "arguments": {"order": 7}}</tool_call>'
    """
    body = _render_call(action) if isinstance(action, ToolCall) else _checked_text("reply", action.content)
    if not body:
        raise DataError("reply", action, "an empty reply is not an action; give it some content")
    if response_format == "plain":
        if thought:
            raise DataError("thought", thought, "the plain format has no place for it; use 'think_answer'")
        return body
    think = f"<think>{_checked_text('thought', thought)}</think>"
    answer = f"<answer>{body}</answer>"
    return answer + think if response_format == "answer_think" else think + answer


def parse_action(text: str, response_format: ResponseFormat = "plain") -> Action | MalformedResponse:
    """Return the action of `text`, or why it is malformed. Never raises.

    Malformed: an empty text; an unpaired tag; several tool calls; JSON that is invalid, has no name, or whose arguments
    are not an object or nested too deeply; with `think_answer` text outside the two blocks or a missing block. A
    <think> that is truncated after a complete <answer> is valid, because the action is complete. With `answer_think`
    the result is determined at the end of the <answer> block at the start of the response: the text after it, or its
    absence, changes neither the action nor its validity.
    """
    answer = answer_of(text, response_format)
    if isinstance(answer, MalformedResponse):
        return answer
    if not answer:
        return MalformedResponse(detail="empty response")
    opened, closed = answer.count("<tool_call>"), answer.count("</tool_call>")
    if not opened and not closed:
        return Reply(content=answer) if encodable(answer) == answer else MalformedResponse(detail="not valid Unicode")
    if opened > 1 or closed > 1:
        return MalformedResponse(detail=f"{max(opened, closed)} tool calls; one is allowed")
    found = _CALL.search(answer)
    if found is None:
        return MalformedResponse(detail="unclosed tool_call tag")
    return _parse_call(found.group(1))


def answer_of(text: str, response_format: ResponseFormat = "plain") -> str | MalformedResponse:
    """Return the acting part of a response: all of it in `plain`, else the inside of <answer>; trimmed."""
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
    """Return the inside of the block at the start of the text, regardless of the text after it."""
    answer, end, _ = text.lstrip().removeprefix("<answer>").partition(ANSWER_END)
    if not end:
        return MalformedResponse(detail="0 x </answer>; one is needed")
    crossed = next((tag for tag in ("<think>", "</think>", "<answer>") if tag in answer), None)
    if crossed is not None:
        return MalformedResponse(detail=f"{crossed} inside the answer")
    return answer.strip()


def acting_text(text: str, response_format: ResponseFormat) -> str:
    """Return the judged part of a response: all of it, or with `answer_think` the text up to the end of its answer."""
    if response_format != "answer_think" or not text.lstrip().startswith("<answer>"):
        return text
    answer, end, _ = text.partition(ANSWER_END)
    return answer + end


def unfence(text: str) -> str:
    """Return the text without a code fence around JSON or a tag: the whole text, or the inside of a tag.

    >>> unfence('```json\\n{"a": 1}\\n```'), unfence("Run ```ls```.")
    ('{"a": 1}', 'Run ```ls```.')
    """
    return _FENCED.sub(lambda found: found[1] + found[2].strip(), text)


def in_order(text: str, response_format: ResponseFormat) -> bool:
    """Return True if a response with an action begins with the block that the prompt requested first."""
    first = {"plain": "", "think_answer": "<think>", "answer_think": "<answer>"}[response_format]
    return text.lstrip().startswith(first)


def customer_text(text: str, response_format: ResponseFormat = "plain") -> str:
    """Return the text that a customer would see: the answer without its tool call, or a malformed text as it is."""
    answer = answer_of(text, response_format)
    return text.strip() if isinstance(answer, MalformedResponse) else _CALL.sub("", answer).strip()


def _render_call(call: ToolCall) -> str:
    if not call.name.strip():
        raise DataError("tool call", call.name, "a tool call needs a name")
    try:
        body = json.dumps({"name": call.name, "arguments": dict(call.parameters)}, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DataError("tool call", call.name, f"its parameters are not JSON ({error})") from error
    return f"<tool_call>{without_markup(body)}</tool_call>"


def without_markup(body: str) -> str:
    """Return JSON with escaped tags and special tokens. Every "<" is inside a string, so this keeps the value."""
    return MARKUP.sub(r"\\u003c", body)


def _checked_text(what: str, text: str) -> str:
    tag = next((tag for tag in _TAGS if tag in text), None)
    if tag is not None:
        raise DataError(what, text, f"{tag} belongs to the wire format; remove it from the text")
    return text.strip()


def _parse_call(body: str) -> ToolCall | MalformedResponse:
    call = _parse_json(body)
    if isinstance(call, MalformedResponse):
        return call
    if not isinstance(call, dict):
        return MalformedResponse(detail="tool call is not an object")
    name = call.get("name")
    if not isinstance(name, str) or not name.strip():
        return MalformedResponse(detail="tool call without a name")
    if "arguments" in call and "parameters" in call:
        return MalformedResponse(detail="tool call with both arguments and parameters")
    arguments = _checked_arguments(call.get("arguments", call.get("parameters", {})))
    if isinstance(arguments, MalformedResponse):
        return arguments
    return ToolCall(name=name.strip(), parameters=arguments)


def _parse_json(text: str) -> Any:
    """Return the value, or a MalformedResponse."""
    try:
        value = json.loads(text, parse_constant=refuse_constant, parse_float=finite_number)
        shown = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        return MalformedResponse(detail=f"tool call is not JSON: {str(error)[:80]}")
    return value if encodable(shown) == shown else MalformedResponse(detail="tool call is not valid Unicode")


def _checked_arguments(arguments: Any) -> dict[str, Any] | MalformedResponse:
    if not isinstance(arguments, dict):
        return MalformedResponse(detail="tool call whose arguments are not an object")
    if is_deeper(arguments, MAX_DEPTH):
        return MalformedResponse(detail=f"tool call nested more than {MAX_DEPTH} deep")
    return arguments


def render_requested(name: str, arguments: str) -> str:
    """Return a tool call that a model requested, with the JSON text of its arguments, in the wire format.

    What is not valid is kept, so that the response is malformed.

    >>> render_requested("lookup", '{"order": 7}')
    '<tool_call>{"name": "lookup", "arguments": {"order": 7}}</tool_call>'
    """
    parameters = parse_arguments(arguments)
    if isinstance(parameters, dict) and name.strip():
        return _render_call(ToolCall(name=name, parameters=parameters))
    return f'<tool_call>{{"name": {json.dumps(name)}, "arguments": {arguments}}}</tool_call>'


def parse_arguments(text: str) -> dict[str, Any] | MalformedResponse:
    """Return the arguments of a tool call from their JSON text, which may be empty."""
    arguments = _parse_json(text.strip() or "{}")
    return arguments if isinstance(arguments, MalformedResponse) else _checked_arguments(arguments)


def is_deeper(value: Any, most: int) -> bool:
    """Return True if lists and objects are nested more than `most` deep."""
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


def finite_number(number: str) -> float:
    """Parse a number of JSON. Raise ValueError for one that is out of range (1e999), which could not be written."""
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number} is out of range")
    return value
