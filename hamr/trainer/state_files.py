"""State files of a trainer, flushed to the disk piece by piece."""

from __future__ import annotations

import hashlib
import io
import os
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

    The SHA-256 of the data is left beside the file, so that sealing the checkpoint does not read the file again.
    """

    def __init__(self, path: str | Path) -> None:
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed in `close`
        self._path, self._hash = Path(path), hashlib.sha256()
        self._written = self._flushed = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
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


class StateFiles(TorchCheckpointEngine):
    """DeepSpeed's writer for its own files. `deepspeed_checkpoint` restricts what is read from them."""

    def save(self, state_dict: Any, path: str) -> None:
        with WrittenThrough(path) as file:
            torch.save(state_dict, file)
