"""Cached questions to one pool: each distinct question is sent once, bounded by its deadline.

Samples of a group often contain identical replies. They share one question and one answer.
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

ScorerRole = Literal["reranker", "judge"]


@dataclass(frozen=True, kw_only=True)
class PoolAnswer:
    """An answer, and whether it was requested now (False: it was cached, or a sibling had already requested it)."""

    answer: Answer
    asked: bool


@dataclass
class _Pending:
    """A question under way. `until`: its deadline, in the event loop's time. `paid`: a response that waited for the
    answer has its time, tokens and cost."""

    task: asyncio.Task[Answer]
    until: float
    paid: bool = False


class CachedPool:
    """One pool behind a small cache. Failures are not cached: the next identical question is sent again."""

    def __init__(self, ask: Ask, *, deadline_s: float, cache_size: int = 4096) -> None:
        """`deadline_s` bounds each question. `cache_size` bounds the cached answers (least recently used evicted
        first)."""
        self._ask, self._deadline_s, self._cache_size = ask, deadline_s, cache_size
        self._pending: dict[bytes, _Pending] = {}
        self._tasks: set[asyncio.Task[Answer]] = set()
        self._known: OrderedDict[bytes, Answer] = OrderedDict()

    async def ask(self, question: Question, *, until: float) -> PoolAnswer:
        """Return the answer of the pool, or one with a failure. Wait until the event loop time `until` at most.

        A shared answer names its scorer but has no time, tokens or cost. These are in the record of one response that
        waited for it, so sums over records are correct. A question whose deadline passes is put again for a response
        that joined in the second half of its time.
        """
        key, time = _key(question), asyncio.get_running_loop().time
        joined = time()
        if key in self._known:
            self._known.move_to_end(key)
            return PoolAnswer(answer=_free(self._known[key]), asked=False)
        pending = self._pending.get(key)
        first = pending is None
        if pending is None:
            task = asyncio.create_task(self._put(key, question))
            pending = self._pending[key] = _Pending(task, joined + self._deadline_s)
            self._tasks.add(pending.task)
            pending.task.add_done_callback(self._tasks.discard)
        try:
            async with asyncio.timeout_at(until):
                # Shielded: a sibling that waits for the same answer may have a later deadline.
                answer = await asyncio.shield(pending.task)
        except TimeoutError:
            return PoolAnswer(answer=Answer(failure="timeout", detail="the response's deadline passed"), asked=first)
        joined_late = joined > pending.until - self._deadline_s / 2
        if answer.failure == "timeout" and joined_late and pending.until <= time() < until:
            return await self.ask(question, until=until)
        paid, pending.paid = pending.paid, True
        return PoolAnswer(answer=_free(answer) if paid else answer, asked=first)

    def drop(self, question: Question) -> None:
        """Drop a cached answer that could not be parsed."""
        self._known.pop(_key(question), None)

    def forget(self) -> None:
        """Clear the cache. Call it when the model or prompt of the pool changes. Pending answers are neither cached nor
        shared with later questions."""
        self._known, self._pending = OrderedDict(), {}

    async def close(self) -> None:
        """Cancel the pending questions."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A task that is cancelled before its first step does not remove itself.
        self._pending.clear()

    async def _put(self, key: bytes, question: Question) -> Answer:
        known = self._known  # until `forget`
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
            pending = self._pending.get(key)
            if pending is not None and pending.task is asyncio.current_task():  # not one since `forget`
                del self._pending[key]
        if answer.failure is None and self._cache_size:
            known[key] = answer
            if len(known) > self._cache_size:
                known.popitem(last=False)
        return answer


def failure_of(role: ScorerRole, answer: Answer) -> Failure | None:
    """Return the typed failure of an answer, or None if it has a score. A score outside [0, 1] is a failure.

    A reranker has no reasoning to parse, so an answer without a usable score counts as unavailable.
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
    """Return the typed failure of a written answer, or None if it has a text."""
    if answer.failure is None and answer.text is not None:
        return None
    return failure_of("judge", replace(answer, failure=answer.failure or "unparsable"))


def unpaid(call: ScorerCall) -> ScorerCall:
    """Return the call as recorded for responses that share its answer: the scorer, but no time, tokens or cost."""
    return replace(
        call, queue_s=0.0, service_s=0.0, prompt_tokens=0, output_tokens=0, attempts=0, cost=0.0, cached_tokens=0
    )


def _free(answer: Answer) -> Answer:
    return answer if answer.call is None else replace(answer, call=unpaid(answer.call))


def _key(question: Question) -> bytes:
    """Return a digest that identifies the question. Short, because thousands are kept and some questions hold a whole
    group."""
    each = [sorted(entry.items()) for entry in question.each]
    messages = [sorted(message.items()) for message in question.messages]
    content = (question.prompt, sorted(question.variables.items()), each, messages, question.tools, question.schema)
    how = (
        question.attempt,
        question.temperature,
        question.max_new_tokens,
        question.seed,
        question.stop,
        question.logprobs,
    )
    return hashlib.sha256(repr((content, how)).encode()).digest()
