"""Responses of a policy to an item, and their parsing: thinking first, answer first, or answer only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hamr.bench.olabench.items import BenchItem, visible_sample
from hamr.data.actions import ResponseFormat, parse_action, unfence
from hamr.data.rendering import policy_messages
from hamr.rewards.questions import JudgedText, words_of
from hamr.types import TRANSIENT, Answer, MalformedResponse, Question, Reply

Cot = Literal["none", "pre", "post"]
ANSWER_END = "</answer>"
_FORMAT: Mapping[Cot, ResponseFormat] = {"none": "plain", "pre": "think_answer", "post": "answer_think"}


@dataclass(frozen=True, kw_only=True)
class PolicyResponse:
    """Either `text`, with its cost if the policy was queried now, or `failure`.

    `seconds` from the start at the replica to the end of the text; in post-CoT to the end of the answer, where
    generation stops. `tokens`: number of generated tokens.
    """

    text: str | None = None
    seconds: float | None = None
    tokens: int | None = None
    prompt_tokens: int | None = None
    cut_off: bool = False
    failure: str | None = None
    detail: str = ""

    @property
    def passing(self) -> bool:
        return self.failure in TRANSIENT

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class ResponseReading:
    """A parsed response.

    `said`: the text that judges read. `malformed`: the reason why it is not an action; "" where it is one. A text that
    is not an action is judged as the customer would receive it. `cot_share`: share of the characters that are thinking.
    """

    said: JudgedText
    malformed: str = ""
    cot_share: float = 0.0


def response_question(item: BenchItem, cot: Cot, *, temperature: float, max_new_tokens: int, seed: int) -> Question:
    messages = policy_messages(visible_sample(item), _FORMAT[cot])
    return Question(
        messages=tuple(messages),
        affinity=item.sample.id,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        seed=seed,
        stop=(ANSWER_END,) if cot == "post" else (),
    )


def response_of(answer: Answer) -> PolicyResponse:
    """Return the response. A truncated text counts as such, since a customer would have received it."""
    cut_off = answer.text is None and answer.failure == "unparsable" and bool(answer.reasoning)
    text = answer.reasoning if cut_off else answer.text
    if text is None:
        return PolicyResponse(failure=answer.failure or "unparsable", detail=answer.detail[:300])
    call = answer.call
    return PolicyResponse(
        text=text,
        seconds=call.service_s if call else None,
        tokens=call.output_tokens if call else None,
        prompt_tokens=call.prompt_tokens if call else None,
        cut_off=cut_off,
    )


def read_response(text: str, cot: Cot, *, strip_fence: bool = False) -> ResponseReading:
    """Parse a response. In post-CoT only the answer at its beginning counts; the following text is ignored.

    >>> read_response("<answer>Sure.</answer><think>why", "post").said.words
    'Sure.'
    """
    text = unfence(text) if strip_fence else text
    if cot == "post":
        before, opened, rest = text.partition("<answer>")
        if before.strip() or not opened:
            return ResponseReading(said=JudgedText(words=text.strip()), malformed="does not begin with its answer")
        return _read(rest.partition(ANSWER_END)[0], "plain")
    reading = _read(text, _FORMAT[cot])
    thought = text.partition("<think>")[2].partition("</think>")[0] if cot == "pre" else ""
    share = len(thought) / len(text) if text else 0.0
    return ResponseReading(said=reading.said, malformed=reading.malformed, cot_share=share)


def _read(text: str, response_format: ResponseFormat) -> ResponseReading:
    action = parse_action(text, response_format)
    if isinstance(action, MalformedResponse):
        return ResponseReading(said=words_of(text, Reply(content=text), response_format), malformed=action.detail)
    return ResponseReading(said=words_of(text, action, response_format))
