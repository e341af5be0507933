"""Answers of one policy to many questions: bounded concurrency, and a file that keeps them row by row."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from hamr.bench.decisions import response_text
from hamr.bench.folder import RowFolder, parsed_rows
from hamr.data.progress import item_key
from hamr.protocols import Ask
from hamr.types import TRANSIENT, Answer, Question

RESPONSES = "responses.jsonl"
GIVE_UP = 32
"""Number of consecutive transient failures after which a pool is considered unavailable for the rest of this call."""
Work = TypeVar("Work")


async def process_all(
    left: Sequence[Work],
    one: Callable[[Work], Awaitable[bool]],
    at_once: int,
    report: Callable[[int], None],
    *,
    give_up: int = GIVE_UP,
) -> bool:
    """Process all of `left`, up to `at_once` concurrently.

    `one` returns whether the pool answered; processing ends early, and False is returned, when it is unavailable.
    """
    waiting, away, done = iter(left), 0, 0

    async def work() -> None:
        nonlocal away, done
        for each in waiting:
            if away >= give_up:
                return
            away = 0 if await one(each) else away + 1
            done += 1
            report(done)

    workers = [asyncio.create_task(work()) for _ in range(min(at_once, len(left)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
    return away < give_up


# --- responses of an agent ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PolicyResponse:
    """Either `text`, with its cost if the policy was queried now, or `failure`.

    `seconds` from the start at the replica to the end of the text; in post-CoT to the end of the answer, where
    generation stops. `tokens`: number of generated tokens. `mean_logprob`:
    log p(text) / tokens, where it was asked for. `at_once`: concurrent requests while it was answered, if known.
    """

    text: str | None = None
    seconds: float | None = None
    tokens: int | None = None
    prompt_tokens: int | None = None
    mean_logprob: float | None = None
    cost: float | None = None
    at_once: int | None = None
    cut_off: bool = False
    failure: str | None = None
    detail: str = ""

    def __post_init__(self) -> None:
        if (self.text is None) == (self.failure is None):
            raise ValueError("a response has a text or a failure")

    @property
    def passing(self) -> bool:
        return self.failure in TRANSIENT


def response_of(answer: Answer, at_once: int | None = None) -> PolicyResponse:
    """Return the response. A truncated text counts as such, since a customer would have received it."""
    if answer.text is None and not answer.is_cut_off:
        return PolicyResponse(failure=answer.failure or "unparsable", detail=answer.detail[:300])
    call = answer.call
    return PolicyResponse(
        text=answer.reasoning if answer.is_cut_off else response_text(answer),
        seconds=call.service_s if call else None,
        tokens=(call.output_tokens or None) if call else None,
        prompt_tokens=(call.prompt_tokens or None) if call else None,
        mean_logprob=answer.mean_logprob,
        cost=call.cost if call else None,
        at_once=at_once,
        cut_off=answer.is_cut_off,
    )


def response_key(settings: Mapping[str, Any], question: Question) -> str:
    """Return the key of a response: the settings of its policy, and its question."""
    messages, tools = [dict(m) for m in question.messages], [list(question.tools)] if question.tools else []
    how = question.temperature, question.max_new_tokens, question.seed, question.stop
    return item_key("response", dict(settings), messages, *tools, *how)


@dataclass(frozen=True, kw_only=True)
class PolicyUnderTest:
    """A policy under test.

    `settings`: what determines its answers. `given`: finished responses by item, where no pool is queried. `native`: it
    gets the tools as schemas.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    at_once: int = 1
    given: Mapping[str, str] | None = None
    native: bool = False


@dataclass(frozen=True, kw_only=True)
class OpenQuestion:
    """A question without a response. `about`: informative fields for readers of the rows."""

    key: str
    question: Question
    about: Mapping[str, Any]


class ResponseLog(RowFolder):
    """Responses of a folder by key, appended on arrival. Transient failures are retried by the next call."""

    names: ClassVar[tuple[str, ...]] = (RESPONSES,)

    def _load(self) -> None:
        rows = parsed_rows(self.folder / RESPONSES, PolicyResponse, "a response")
        self._responses = {str(row.get("key")): response for row, response in rows}

    def response(self, key: str) -> PolicyResponse:
        """Return a response; a missing one counts as a transient failure."""
        return self._responses.get(key, PolicyResponse(failure="unavailable", detail="not asked"))

    def add_response(self, key: str, response: PolicyResponse, about: Mapping[str, Any]) -> None:
        """Append a response. `about`: informative fields for readers of the rows."""
        self._responses[key] = response
        self._write(RESPONSES, {"key": key, **about, **vars(response)})

    def response_to(self, policy: PolicyUnderTest, item: str, question: Question) -> PolicyResponse:
        """Return a policy's response to an item."""
        if policy.given is not None:
            return PolicyResponse(text=policy.given[item])
        return self.response(response_key(policy.settings, question))

    def open_questions(self, policy: PolicyUnderTest, questions: Mapping[str, Question]) -> list[OpenQuestion]:
        """Return the questions, given by item, that the policy has not answered."""
        return [
            OpenQuestion(
                key=response_key(policy.settings, question),
                question=question,
                about={"policy": policy.name, "item": item},
            )
            for item, question in questions.items()
            if self.response_to(policy, item, question).passing
        ]

    async def collect(
        self,
        left: Sequence[OpenQuestion],
        ask: Ask,
        at_once: int,
        report: Callable[[int], None],
        *,
        measured: bool = False,
        give_up: int = GIVE_UP,
    ) -> bool:
        """Ask the questions and append their responses, as `process_all` does. `measured`: store `at_once`, too."""

        async def one(each: OpenQuestion) -> bool:
            response = response_of(await ask(each.question), at_once if measured else None)
            self.add_response(each.key, response, each.about)
            return not response.passing

        return await process_all(left, one, at_once, report, give_up=give_up)
