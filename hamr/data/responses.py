"""Finished responses for scoring without training. A sample with its responses is a group.

In a file, a line is a sample (`hamr.data.samples`) with an additional field: `response`, a text, or `responses`, a
list. An assistant message of OpenAI's format may replace a text: {"content": "...", "tool_calls": [...]}. Its content
may be a list of text parts; a refusal is read as the text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hamr.data.actions import render_requested
from hamr.data.samples import from_json, stream_rows
from hamr.errors import DataError
from hamr.types import Rollout, SampleKey, ServiceSample

_TEXTS = ("text", "refusal")
"""Types of the parts of a message's content that are text, under a key of the same name."""

Scorable = tuple[ServiceSample | Mapping[str, Any], Sequence[str]]
"""A sample, or its object in the sample format, and its responses."""


@dataclass(frozen=True, kw_only=True)
class ResponseGroup:
    """A sample with responses to it. `number` distinguishes groups of one sample: its line in a file."""

    sample: ServiceSample
    responses: tuple[str, ...]
    number: int

    def rollouts(self, run: str) -> tuple[Rollout, ...]:
        """Return the responses as rollouts without tokens. The number of the group is used as the step."""
        return tuple(
            Rollout(
                key=SampleKey(run=run, step=self.number, prompt=self.sample.id, sample=index),
                prompt_ids=(),
                token_ids=(),
                logprobs=(),
                text=text,
                finish_reason="stop",
                versions=(),
                siblings=len(self.responses),
            )
            for index, text in enumerate(self.responses)
        )


def stream_groups(
    path: str | Path, skip: Callable[[DataError], None] | None = None
) -> Iterator[tuple[ResponseGroup, bytes]]:
    """Yield the groups of the file line by line, each with its bytes, including preceding blank lines.

    Raises DataError (file, line and field) at the first fault. With `skip`, an invalid line is passed to it and treated
    as blank.
    """
    since = b""
    for line, raw, row in stream_rows(path, skip):
        since += raw
        where = f"{path}:{line}"
        try:
            sample = from_json(row, where=where, own=("response", "responses"))
            group = ResponseGroup(sample=sample, responses=_responses(row, where), number=line)
        except DataError as error:
            if skip is None:
                raise
            skip(error)
            continue
        yield group, since
        since = b""


def as_group(item: Scorable, *, where: str, number: int) -> ResponseGroup:
    """Return a sample, or its object, with responses as a group. DataError has the place `<where>: <field>`."""
    if not isinstance(item, list | tuple) or len(item) != 2:
        raise DataError(where, type(item).__name__, "give a pair of a sample and its responses")
    sample, responses = item
    texts = isinstance(responses, list | tuple) and all(isinstance(text, str) for text in responses)
    if not texts or not responses:
        raise DataError(f"{where}: responses", responses, "give a list of at least one text")
    read = sample if isinstance(sample, ServiceSample) else from_json(sample, where=where)
    return ResponseGroup(sample=read, responses=tuple(responses), number=number)


def _responses(row: dict[str, Any], where: str) -> tuple[str, ...]:
    one, several = row.get("response"), row.get("responses")
    if one is not None and several is not None:
        raise DataError(f"{where}: response", one, "the line has `responses` too; keep one of the two fields")
    found = [one] if one is not None else several
    if not isinstance(found, list) or not found:
        remedy = "give a text, or `responses`: a list of texts; each may be an assistant message"
        raise DataError(f"{where}: response", several, remedy)
    texts = []
    for index, response in enumerate(found):
        text = text_of_response(response)
        if text is None:
            field = "response" if one is not None else f"responses[{index}]"
            remedy = "give a text, or an assistant message with text in its content, a refusal, or tool_calls"
            raise DataError(f"{where}: {field}", response, remedy)
        texts.append(text)
    return tuple(texts)


def text_of_response(response: Any) -> str | None:
    """Return a response in the wire format of actions; None if it is neither a text nor an assistant message.

    >>> text_of_response({"content": None, "tool_calls": [{"function": {"name": "lookup", "arguments": "{}"}}]})
    '<tool_call>{"name": "lookup", "arguments": {}}</tool_call>'
    """
    if isinstance(response, str):
        return response
    if not isinstance(response, dict):
        return None
    content, calls = _text_of_content(response), response.get("tool_calls")
    if content is None or not isinstance(calls, list | None) or not (content or calls):
        return None
    texts = []
    for call in calls or ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return None
        arguments = function.get("arguments", "{}")
        texts.append(
            render_requested(function["name"], arguments if isinstance(arguments, str) else json.dumps(arguments))
        )
    return "".join([content, *texts])


def _text_of_content(message: Mapping[str, Any]) -> str | None:
    """Return the text of a message: its content, the text parts of it, or the refusal. None if it has another part."""
    content = message.get("content")
    if content in (None, ""):
        content = message.get("refusal") or ""
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    found = [part.get(kind) for part in parts if isinstance(part, dict) for kind in _TEXTS if part.get("type") == kind]
    texts = [text for text in found if isinstance(text, str)]
    return "".join(texts) if len(texts) == len(parts) else None
