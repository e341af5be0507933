"""Settings of processes that compute on a CPU. Environment variables are read once, when a process starts."""

from __future__ import annotations

import contextlib
import ctypes

ALLOCATOR_ENV = {
    # Freed buffers stay in the process: each step allocates the same ones again, and handing them back to the
    # kernel in between costs page faults on every page of every activation.
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_ARENA_MAX": "2",
}
"""What the C allocator of a process with large, short-lived buffers should do."""

WAITING_ENV = {
    # A waiting thread spins for some ten microseconds, then sleeps: to sleep at once costs a third of a step of many
    # small operations, to spin for long starves the other processes of a small machine.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "20000",
}
"""What a thread does that waits for the others of its process."""


def hand_back_freed_memory() -> None:
    """Gives the kernel what this process has freed and its allocator keeps (glibc; elsewhere nothing happens).

    For the end of a stage, whose buffers the next one would not fit into: kept, they add up.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
