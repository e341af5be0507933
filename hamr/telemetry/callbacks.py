"""Calls of the user's functions during a run."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from hamr.security.functions import LoadedFunction, describe_error

LAST_CALLS_S = 30.0
"""Maximum wait for unfinished calls at the end of a run."""


class Callbacks:
    """Calls functions, `async def` included, one after the other in a thread of their own, so that none delays a step.

    A function that raises is reported through `note`, once per distinct message, and is called again at the next event.
    """

    def __init__(self, functions: Mapping[str, LoadedFunction], note: Callable[[str], None]) -> None:
        self._functions, self._note = functions, note
        self._noted: set[str] = set()
        self._calls: queue.SimpleQueue[tuple[str, tuple[Any, ...]] | None] = queue.SimpleQueue()
        # A daemon, so that a function that never returns cannot keep the process alive.
        self._thread = threading.Thread(target=self._run, name="callbacks", daemon=True)
        self._thread.start()

    def call(self, name: str, *args: Any) -> None:
        """Schedule a call of `on_step_end` or `on_evaluation_end`, if there is such a function."""
        if name in self._functions:
            self._calls.put((name, args))

    def close(self) -> None:
        """Wait for the calls that are due."""
        self._calls.put(None)
        self._thread.join(LAST_CALLS_S)
        if self._thread.is_alive():
            self._note(
                f"logging.callbacks: a call has not returned within {LAST_CALLS_S:g} s of the run's end and is dropped"
            )

    def _run(self) -> None:
        while (due := self._calls.get()) is not None:
            name, args = due
            function = self._functions[name]
            try:
                if function.is_async:
                    asyncio.run(function(*args))
                else:
                    function(*args)
            except (Exception, SystemExit) as error:
                message = f"logging.callbacks.{name}: raised {describe_error(error, function.source)}"
                if message not in self._noted:
                    self._noted.add(message)
                    self._note(message)
