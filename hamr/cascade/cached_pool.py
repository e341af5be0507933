"""Putting questions to one pool: each distinct question once, and never for longer than its deadline.

The samples of a group often say the same thing word for word; then they share one question and one answer.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Literal

from hamr.errors import EngineDied, ScorerTimeout, ScorerUnavailable, VerdictUnparsable
from hamr.protocols import Ask
from hamr.types import (
    Answer,
    Failure,
    JudgeTimeout,
    JudgeUnavailable,
    JudgeUnparsable,
    Question,
    RerankerTimeout,
    RerankerUnavailable,
    ScorerCall,
)

Role = Literal["reranker", "judge"]


@dataclass(frozen=True, kw_only=True)
class Heard:
    """An answer, and whether it was asked for now (False: it was known, or a sibling was already asking)."""

    answer: Answer
    asked: bool


class CachedPool:
    """One pool behind a small cache. Failures are not kept: the next identical question is asked afresh."""

    def __init__(self, ask: Ask, *, deadline_s: float, cache_size: int = 4096) -> None:
        """`deadline_s` bounds every question, `cache_size` the answers kept (the least recently used go first)."""
        self._ask, self._deadline_s, self._cache_size = ask, deadline_s, cache_size
        self._pending: dict[bytes, asyncio.Task[Answer]] = {}
        self._known: OrderedDict[bytes, Answer] = OrderedDict()

    async def ask(self, question: Question, *, until: float) -> Heard:
        """The pool's answer, or one with a failure; waits until the event loop's time `until` at most.

        An answer that was not asked for now carries its scorer but no time, tokens or cost: these stand in the
        record of the response that asked, and sums over records stay true.
        """
        key = _key(question)
        if key in self._known:
            self._known.move_to_end(key)
            return Heard(answer=_free(self._known[key]), asked=False)
        task = self._pending.get(key)
        first = task is None
        if task is None:
            task = self._pending[key] = asyncio.create_task(self._put(key, question))
        try:
            async with asyncio.timeout_at(until):
                # Shielded: a sibling that waits for the same answer may have more time left.
                answer = await asyncio.shield(task)
        except TimeoutError:
            return Heard(answer=Answer(failure="timeout", detail="the response's deadline passed"), asked=first)
        return Heard(answer=answer if first else _free(answer), asked=first)

    def drop(self, question: Question) -> None:
        """Forgets one answer: it came, and could not be read."""
        self._known.pop(_key(question), None)

    def forget(self) -> None:
        """Drops the known answers; to be called when the pool's model or prompt changes."""
        self._known.clear()

    async def close(self) -> None:
        """Cancels the questions that are still under way."""
        tasks = list(self._pending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A task that was cancelled before its first step never came to take itself off.
        self._pending.clear()

    async def _put(self, key: bytes, question: Question) -> Answer:
        try:
            async with asyncio.timeout(self._deadline_s):
                answer = await self._ask(question)
        except (TimeoutError, ScorerTimeout) as error:
            return Answer(failure="timeout", detail=str(error) or f"no answer within {self._deadline_s:g} s")
        except (ScorerUnavailable, EngineDied) as error:
            return Answer(failure="unavailable", detail=str(error))
        except VerdictUnparsable as error:
            return Answer(failure="unparsable", detail=str(error))
        finally:
            self._pending.pop(key, None)
        if answer.failure is None and self._cache_size:
            self._known[key] = answer
            if len(self._known) > self._cache_size:
                self._known.popitem(last=False)
        return answer


def failure_of(role: Role, answer: Answer) -> Failure | None:
    """The typed failure of an answer; None if it carries a score. A score outside [0, 1] is no score.

    A reranker has no reasoning to misread: an answer without a usable score means that it cannot serve.
    """
    kind, detail = answer.failure, answer.detail
    if kind is None:
        if answer.score is not None and 0.0 <= answer.score <= 1.0:
            return None
        kind, detail = "unparsable", f"score={answer.score!r} is not in [0, 1]"
    if role == "reranker":
        return RerankerTimeout(detail=detail) if kind == "timeout" else RerankerUnavailable(detail=detail)
    if kind == "timeout":
        return JudgeTimeout(detail=detail)
    return JudgeUnparsable(detail=detail) if kind == "unparsable" else JudgeUnavailable(detail=detail)


def written_failure(answer: Answer) -> Failure | None:
    """The typed failure of an answer to a question that brought its own prompt; None if it has a text."""
    if answer.failure is None and answer.text is not None:
        return None
    return failure_of("judge", replace(answer, failure=answer.failure or "unparsable"))


def unpaid(call: ScorerCall) -> ScorerCall:
    """A call as it stands in the records of those who share its answer: who, but no time, tokens or cost."""
    return replace(
        call, queue_s=0.0, service_s=0.0, prompt_tokens=0, output_tokens=0, attempts=0, cost=0.0, cached_tokens=0
    )


def _free(answer: Answer) -> Answer:
    return answer if answer.call is None else replace(answer, call=unpaid(answer.call))


def _key(question: Question) -> bytes:
    """What makes two questions the same, in few bytes: thousands are remembered, some with a group's whole words."""
    each = [sorted(entry.items()) for entry in question.each]
    messages = [sorted(message.items()) for message in question.messages]
    said = (question.prompt, sorted(question.variables.items()), each, messages, question.schema)
    how = (question.attempt, question.temperature, question.max_new_tokens, question.seed, question.stop)
    return hashlib.sha256(repr((said, how)).encode()).digest()
