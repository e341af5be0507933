"""Participants without a model: gold replays of a task, and a customer that states its case."""

from __future__ import annotations

import json
from typing import Any

from hamr.bench.tau2.tasks import opening, tasks_of
from hamr.types import Answer, Question, RequestedCall, ServiceSample

STOP = "###STOP###"
PATIENCE = 3
"""Messages of the scripted customer before it leaves."""


class GoldReplay:
    """Agent and customer that do the gold actions of a task in their order. The agent then says what it has to."""

    def __init__(self, sample: ServiceSample) -> None:
        criteria = tasks_of(sample.meta["domain"])[sample.meta["task"]].evaluation_criteria
        self._open: list[Any] = list((criteria.actions if criteria else None) or ())
        facts = " ".join((criteria.communicate_info if criteria else None) or ())
        self._answer = f"That is done. {facts}".strip()
        self._answered = False

    async def act(self, point: ServiceSample) -> Answer:
        if (call := self._next("assistant")) is not None:
            return call
        self._answered = not self._open
        return Answer(text=self._answer if self._answered else "Please do that now.")

    async def user(self, question: Question) -> Answer:
        return self._next("user") or Answer(text=STOP if self._answered else "Go on.")

    def _next(self, requestor: str) -> Answer | None:
        if not self._open or self._open[0].requestor != requestor:
            return None
        action = self._open.pop(0)
        call = RequestedCall(name=action.name, arguments=json.dumps(action.arguments))
        return Answer(text="", tool_calls=(call,))


class CaseCustomer:
    """Customer that states its case, repeats that it waits, and leaves."""

    def __init__(self, sample: ServiceSample) -> None:
        self._case, self._messages = opening(sample.meta["domain"], sample.meta["task"]), 0

    async def __call__(self, question: Question) -> Answer:
        self._messages += 1
        if self._messages > PATIENCE:
            return Answer(text=STOP)
        return Answer(text=self._case if self._messages == 1 else "Yes, please go on. I have told you all that I know.")
