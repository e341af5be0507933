"""Settings of processes that compute on a CPU. Environment variables are read once, when a process starts."""

from __future__ import annotations

import contextlib
import ctypes

ALLOCATOR_ENV = {
    # Keep freed buffers in the process: each step allocates the same ones again, and returning them to the kernel in
    # between costs page faults on every page of every activation.
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_ARENA_MAX": "2",
}
"""Settings of the C allocator for a process with large, short-lived buffers."""

WAITING_ENV = {
    # Idle threads spin for some ten microseconds, then sleep. Sleeping immediately costs a third of a step of many
    # small operations; spinning for long starves the other processes of a small machine.
    "OMP_WAIT_POLICY": "PASSIVE",
    "GOMP_SPINCOUNT": "20000",
}
"""OpenMP settings for threads that wait for others of their process."""


def hand_back_freed_memory() -> None:
    """Return memory that was freed but cached by the allocator to the kernel (glibc only).

    Call it at the end of a stage; otherwise the buffers of stages add up.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
