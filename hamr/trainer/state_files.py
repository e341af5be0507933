"""Checkpoint files of a trainer: flushed to the disk piece by piece, or held in memory and written later."""

from __future__ import annotations

import hashlib
import io
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

from hamr.trainer.checkpoints import DIGEST_SUFFIX

PIECE = 64 << 20
"""Bytes between two flushes."""


class WrittenThrough(io.RawIOBase):
    """File that flushes each piece to the disk, and drops it from the page cache, while the next one is written.

    A checkpoint must be flushed before it counts. Flushing only at the end lets gigabytes fill the page cache, which
    took three times as long on a machine that allocates pages slowly.

    The SHA-256 of the data is left next to the file, so that sealing the checkpoint does not read the file again.
    """

    def __init__(self, path: str | Path) -> None:
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed in `close`
        self._path, self._hash = Path(path), hashlib.sha256()
        self._written = self._flushed = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Write the bytes, hash them, and pass them to the disk by the piece. Return their number."""
        left = memoryview(data).cast("B")
        size = len(left)
        while left:
            done = self._file.write(left[:PIECE])
            self._hash.update(left[:done])
            self._written += done
            left = left[done:]
            if self._written - self._flushed >= PIECE:
                self._through()
        return size

    def close(self) -> None:
        """Pass the rest to the disk, and write the digest next to the file."""
        if not self.closed:
            try:
                self._through()
                self._path.with_name(self._path.name + DIGEST_SUFFIX).write_text(self._hash.hexdigest())
            finally:
                self._file.close()
                super().close()

    def _through(self) -> None:
        number = self._file.fileno()
        os.fsync(number)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(number, self._flushed, self._written - self._flushed, os.POSIX_FADV_DONTNEED)
        self._flushed = self._written


class HeldFile(io.RawIOBase):
    """File whose content stays in host memory until `write_out`."""

    def __init__(self, path: str | Path) -> None:
        self._path, self._pieces = path, deque[bytes]()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Copy the bytes to host memory. Return their number."""
        self._pieces.append(bytes(data))
        return len(self._pieces[-1])

    def write_out(self) -> None:
        """Write the content to the disk. Each piece is released when it is written."""
        with WrittenThrough(self._path) as file:
            while self._pieces:
                file.write(self._pieces.popleft())


class StateFiles(TorchCheckpointEngine):
    """Writer of a rank's checkpoint files, DeepSpeed's own included. `deepspeed_checkpoint` restricts what is read from
    them.

    DeepSpeed's decoupled writer is not used: it compiles an extension, covers only DeepSpeed's files, and the next
    optimiser step waits for it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held = deque[HeldFile]()
        self._holds = False

    def open(self, path: str | Path) -> io.RawIOBase:
        """Return a new file, to be closed after its last `write`."""
        if not self._holds:
            return WrittenThrough(path)
        self._held.append(HeldFile(path))
        return self._held[-1]

    def save(self, state_dict: Any, path: str) -> None:
        """Save a state as `torch.save` does: to the disk, or to host memory inside `holding`."""
        with self.open(path) as file:
            torch.save(state_dict, file)

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Hold the files that the body opens in host memory, in place of those of an earlier write that failed."""
        self._held.clear()
        self._holds = True
        try:
            yield
        finally:
            self._holds = False

    def write_held(self) -> None:
        """Write the held files. Another thread may change the state that they were made from."""
        while self._held:
            self._held.popleft().write_out()
