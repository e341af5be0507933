"""Responses of a policy to an item, and their parsing: thinking first, answer first, or answer only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hamr.bench.decisions import decision_question
from hamr.bench.olabench.items import BenchItem, visible_sample
from hamr.data.actions import ResponseFormat, parse_action, unfence
from hamr.rewards.questions import JudgedText, words_of
from hamr.types import MalformedResponse, Question, Reply

Cot = Literal["none", "pre", "post"]
ANSWER_END = "</answer>"
_FORMAT: Mapping[Cot, ResponseFormat] = {"none": "plain", "pre": "think_answer", "post": "answer_think"}


@dataclass(frozen=True, kw_only=True)
class ResponseReading:
    """A parsed response.

    `text`: the text that judges read. `malformed`: the reason why it is not an action; "" where it is one. A text that
    is not an action is judged as the customer would receive it. `cot_share`: share of the characters that are thinking.
    """

    text: JudgedText
    malformed: str = ""
    cot_share: float = 0.0


def response_question(
    item: BenchItem, cot: Cot, *, native: bool = False, temperature: float, max_new_tokens: int, seed: int
) -> Question:
    return decision_question(
        visible_sample(item),
        _FORMAT[cot],
        native=native,
        affinity=item.sample.id,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        seed=seed,
        stop=(ANSWER_END,) if cot == "post" else (),
    )


def read_response(text: str, cot: Cot, *, strip_fence: bool = False) -> ResponseReading:
    """Parse a response. In post-CoT only the answer at its beginning counts; the following text is ignored.

    >>> read_response("<answer>Sure.</answer><think>why", "post").text.words
    'Sure.'
    """
    text = unfence(text) if strip_fence else text
    if cot == "post":
        before, opened, rest = text.partition("<answer>")
        if before.strip() or not opened:
            return ResponseReading(text=JudgedText(words=text.strip()), malformed="does not begin with its answer")
        return _read(rest.partition(ANSWER_END)[0], "plain")
    reading = _read(text, _FORMAT[cot])
    thought = text.partition("<think>")[2].partition("</think>")[0] if cot == "pre" else ""
    share = len(thought) / len(text) if text else 0.0
    return ResponseReading(text=reading.text, malformed=reading.malformed, cot_share=share)


def _read(text: str, response_format: ResponseFormat) -> ResponseReading:
    action = parse_action(text, response_format)
    if isinstance(action, MalformedResponse):
        return ResponseReading(text=words_of(text, Reply(content=text), response_format), malformed=action.detail)
    return ResponseReading(text=words_of(text, action, response_format))
