"""Waiting for a scorer that is away, as long as the response has time (`fallback: wait`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from hamr.cascade.cached_pool import CachedPool, Heard
from hamr.protocols import Ask
from hamr.types import Answer, Question

FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 15.0
"""Between two tries where the pool does not say when asking again may help; doubled each time up to the second."""


async def ask_until(
    asker: CachedPool,
    question: Question,
    *,
    until: float,
    clock: Callable[[], float] | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Heard:
    """The pool's answer; while it is away, asked again until the clock (the event loop's) says `until`.

    A refusal says how long it holds (`Answer.retry_in_s`), and so long is waited. Other timeouts and unavailability
    are asked again after growing waits. An answer that cannot be read is an answer: waiting would not mend it.
    When time is up, the last failure stands.
    """
    now, wait_s = clock or asyncio.get_running_loop().time, FIRST_WAIT_S
    while True:
        heard = await asker.ask(question, until=until)
        if heard.answer.failure not in ("timeout", "unavailable"):
            return heard
        told = heard.answer.retry_in_s
        pause_s = wait_s if told is None else max(told, 0.05)
        if now() + pause_s >= until:
            return heard
        await sleep(pause_s)
        if told is None:
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)


async def ask_again(ask: Ask, question: Question, *, attempts: int, longest_wait_s: float) -> Answer:
    """The pool's answer, asked for up to `attempts` times where it takes no questions for a while, each time after as
    long as it says. Its own retries are behind every answer already."""
    answer = await ask(question)
    for _ in range(attempts - 1):
        if answer.retry_in_s is None:
            break
        await asyncio.sleep(min(answer.retry_in_s, longest_wait_s))
        answer = await ask(question)
    return answer
