"""Bounded concurrent processing of a stream with results in input order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def in_order(
    items: Iterable[T], work: Callable[[T], Awaitable[R]], *, at_once: int
) -> AsyncIterator[tuple[T, R]]:
    """Yield each item with the result of `work` on it, in order.

    At most `at_once` items are between the item whose result comes next and the last one taken from `items`, so neither
    work nor results pile up behind a slow item. An error of `items` is raised after the results of all items before it,
    an error of `work` at its item's position. Running work is cancelled then, and when the consumer stops.
    """
    if at_once < 1:
        raise ValueError(f"at_once={at_once}: must be at least 1")
    source = iter(items)
    pending: deque[tuple[T, asyncio.Future[R]]] = deque()
    fault: Exception | None = None
    exhausted = False
    try:
        while True:
            while not exhausted and len(pending) < at_once:
                try:
                    item = next(source)
                except StopIteration:
                    exhausted = True
                except Exception as error:
                    fault, exhausted = error, True
                else:
                    pending.append((item, asyncio.ensure_future(work(item))))
            if not pending:
                break
            # The first task stays in `pending` until it is done, so that it is cancelled with the others.
            first, task = pending[0]
            result = await task
            pending.popleft()
            yield first, result
        if fault is not None:
            raise fault
    finally:
        for _, task in pending:
            task.cancel()
        await asyncio.gather(*(task for _, task in pending), return_exceptions=True)
