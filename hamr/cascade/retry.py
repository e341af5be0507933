"""Retry of an unavailable scorer until the deadline of the response (`fallback: wait`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from hamr.cascade.cached_pool import CachedPool, PoolAnswer
from hamr.protocols import Ask
from hamr.types import TRANSIENT, Answer, Question

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 15.0
"""Backoff between two tries if the pool gives no retry time. Doubled each time, up to the second value."""


async def ask_until(
    pool: CachedPool,
    question: Question,
    *,
    until: float,
    clock: Callable[[], float] | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> PoolAnswer:
    """Return the answer of the pool. While the pool is unavailable, retry until the event loop time `until`.

    A refusal states its duration (`Answer.retry_in_s`), which is the wait. Other timeouts and unavailability are
    retried with exponential backoff. An unparseable answer is returned, because waiting would not change it. At the
    deadline, the last failure is returned.
    """
    now, wait_s = clock or asyncio.get_running_loop().time, FIRST_WAIT_S
    while True:
        reply = await pool.ask(question, until=until)
        if reply.answer.failure not in TRANSIENT:
            return reply
        retry_in_s = reply.answer.retry_in_s
        pause_s = wait_s if retry_in_s is None else max(retry_in_s, 0.05)
        if now() + pause_s >= until:
            return reply
        await sleep(pause_s)
        if retry_in_s is None:
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)


class RetryOptions(Protocol):
    """Options of the questions to a pool."""

    @property
    def attempts(self) -> int: ...

    @property
    def longest_wait_s(self) -> float: ...


def patient(ask: Ask, options: RetryOptions) -> Ask:
    """Return an `Ask` that retries a refusal after the time that it states, up to `attempts` calls in total.

    Retries inside the pool are already included in each answer.
    """

    async def ask_patiently(question: Question) -> Answer:
        answer = await ask(question)
        for _ in range(options.attempts - 1):
            if answer.retry_in_s is None:
                break
            await asyncio.sleep(min(answer.retry_in_s, options.longest_wait_s))
            answer = await ask(question)
        return answer

    return ask_patiently
