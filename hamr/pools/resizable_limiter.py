"""Semaphore whose size can change while callers wait."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType


class ResizableLimiter:
    """FIFO semaphore: `async with limiter:` admits at most `most` holders at a time. Use in one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._inside = 0
        self._line: deque[asyncio.Future[None]] = deque()

    def resize(self, most: int) -> None:
        """Set the limit. Does not evict current holders."""
        self._most = most
        self._let_in()

    def turn_away(self) -> None:
        """Cancel all waiting callers."""
        for turn in self._line:
            turn.cancel()

    async def __aenter__(self) -> None:
        if self._inside < self._most and not self._line:
            self._inside += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # cancelled in the moment of admission
                self._leave()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        self._inside -= 1
        self._let_in()

    def _let_in(self) -> None:
        while self._line and self._inside < self._most:
            turn = self._line.popleft()
            if not turn.done():
                self._inside += 1
                turn.set_result(None)
