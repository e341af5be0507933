"""Memory of all processes of a run, and its peak."""

from __future__ import annotations

import threading
from types import TracebackType

import psutil

GIB = 1 << 30


def tree_memory_gib() -> float:
    """Return the proportional set size of this process and all its descendants, in GiB; shared pages count once.

    A local Ray's processes are descendants of the process that started it. Processes that end meanwhile count 0.
    """
    me = psutil.Process()
    total = 0
    for process in (me, *me.children(recursive=True)):
        try:
            total += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total / GIB


class MemoryWatch:
    """Samples `tree_memory_gib` every `interval_s` seconds in a thread; `peak` is the maximum."""

    def __init__(self, interval_s: float = 5.0) -> None:
        self.peak = 0.0
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="memory-watch")

    def _watch(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.peak = max(self.peak, tree_memory_gib())

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
