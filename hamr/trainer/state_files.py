"""Files of a trainer's state: written through to the disk piece by piece."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import torch
from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

PIECE = 64 << 20
"""Bytes between two visits to the disk."""


class WrittenThrough(io.RawIOBase):
    """A file whose pieces are on the disk, and out of the page cache, while the next ones are being written.

    A checkpoint has to be flushed before it counts. Flushed at its end, gigabytes of it first fill memory that nobody
    reads: on a machine that gets fresh pages slowly that took three times as long.
    """

    def __init__(self, path: str | Path) -> None:
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115 - closed in `close`
        self._written = self._flushed = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        while left:
            done = self._file.write(left[:PIECE])
            self._written += done
            left = left[done:]
            if self._written - self._flushed >= PIECE:
                self._through()
        return size

    def close(self) -> None:
        if not self.closed:
            try:
                self._through()
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
    """How DeepSpeed writes its own files. What is read of them is bounded in `deepspeed_checkpoint`."""

    def save(self, state_dict: Any, path: str) -> None:
        with WrittenThrough(path) as file:
            torch.save(state_dict, file)
