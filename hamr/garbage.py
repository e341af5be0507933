"""Python's garbage collector in processes that load large libraries. Standard library only."""

from __future__ import annotations

import gc

THRESHOLDS = (20_000, 20, 20)
"""Thresholds of the collector; Python's defaults are (700, 10, 10)."""


def collect_rarely() -> None:
    """Make the collector of this process run less often, and skip what is loaded already.

    Call it first in a process of hamr's own. An import of vLLM or transformers creates objects by the million that all
    stay: with the default thresholds a fifth of the CPU time of a start goes into traversing them again and again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
