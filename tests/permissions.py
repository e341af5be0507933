"""File permissions in tests that run as root, to whom the kernel grants access to every file."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

VERSION_3 = 0x20080522
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 1, 2


@contextlib.contextmanager
def file_permissions_enforced() -> Iterator[None]:
    """Drop the capabilities to read and write every file, of this thread and those that it starts (see capset(2))."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(VERSION_3, 0)
    before = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable, in two halves
    assert libc.capget(header, before) == 0
    after = (ctypes.c_uint32 * 6)(*before)
    after[0] &= ~(1 << CAP_DAC_OVERRIDE | 1 << CAP_DAC_READ_SEARCH)
    assert libc.capset(header, after) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0
