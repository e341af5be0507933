"""What the C allocator of a process with large, short-lived buffers should do on a CPU."""

ALLOCATOR_ENV = {
    # Freed buffers stay in the process: each step allocates the same ones again, and handing them back to the
    # kernel in between costs page faults on every page of every activation.
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_ARENA_MAX": "2",
}
"""Environment variables; glibc reads them once, when the process starts."""
