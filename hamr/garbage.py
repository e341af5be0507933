"""Settings of Python's garbage collector for processes that load large libraries. Standard library only."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

THRESHOLDS = (20_000, 20, 20)
"""Thresholds of the collector; Python's defaults are (700, 10, 10)."""


def collect_rarely(young: int = THRESHOLDS[0]) -> None:
    """Make the collector of this process run less often and skip objects that exist already.

    `young` is the first threshold. A higher one suits processes that create many objects and hardly any cycles.

    Call it at the start of a process. Importing vLLM or transformers creates millions of objects that are never freed.
    With the default thresholds, traversing them repeatedly takes a fifth of the CPU time of the start-up.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(young, *THRESHOLDS[1:])


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Stop the collector while the body imports a large library, then skip all that is loaded.

    Each full collection over the modules of vLLM takes half a second, and its start asks for five of them.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
