"""Atomic checkpoints: written to a temporary folder, flushed, then renamed. The newest complete one counts.

checkpoints/step_<n>/state.json     the job's state apart from the weights, and a manifest of the files
checkpoints/step_<n>/...            files written by the `write` callback
checkpoints/.step_<n>.tmp           being written, or left by a killed process
checkpoints/.step_<n>.replaced      the previous step_<n> while it is being replaced
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hamr.errors import HamrError, RunFolderError

log = logging.getLogger(__name__)

_STATE = "state.json"
_QUICK_BYTES = 4 << 20
"""A quick check compares larger files by size only, since hashing a gigabyte of optimiser state takes seconds."""
DIGEST_SUFFIX = ".sha256"
"""A writer that hashes a file while writing it leaves the digest under the file's name and this suffix, for `save`."""

WriteState = Callable[[Path], Awaitable[None]]
Copy = Callable[[Path], Awaitable[Callable[[], Awaitable[None]]]]
"""Copies what a checkpoint holds. Returns the function that writes the copy to the folder."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint. `state` is the value passed to `save`."""

    step: int
    path: Path
    state: Mapping[str, Any]


class Checkpoints:
    """Checkpoints of one run. Keeps the newest `keep` complete ones (at least 2)."""

    def __init__(self, folder: Path | str, keep: int = 2) -> None:
        assert keep >= 2, "keep must be at least 2: a single checkpoint can be lost to a bad disk"
        self.folder = Path(folder)
        self.keep = keep
        self._verified: set[int] = set()
        """Steps whose checkpoints this object has written or read as a whole."""
        self._damaged: set[int] = set()
        """Steps whose checkpoints were found damaged by a check that also reads large files."""
        self._under_way: asyncio.Task[Checkpoint] | None = None

    async def __aenter__(self) -> Checkpoints:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Wait for the checkpoint under way, or drop it if the body was cancelled. An error of the body comes first."""
        if isinstance(error, asyncio.CancelledError) and self._under_way is not None:
            self._under_way.cancel()
            await asyncio.wait([self._under_way])
            return
        try:
            await self.settle()
        except Exception as failed:
            if error is None:
                raise
            log.warning("the last checkpoint was not finished: %s", failed or type(failed).__name__)

    async def save(self, step: int, write: WriteState, state: Mapping[str, Any]) -> Checkpoint:
        """Write the checkpoint of `step`, after one that is under way, and remove older ones.

        A complete checkpoint stays complete until its successor is. A failing `write` leaves no files. A full disk or
        a folder that may not be written raises one HamrError that names it.

        Args:
            write: Fills the folder that it gets.
            state: Must be JSON.
        """
        aside = await self._new_folder(step)
        return await self._complete(aside, step, partial(write, aside), state)

    async def save_later(self, step: int, copy: Copy, state: Mapping[str, Any]) -> None:
        """Copy the checkpoint of `step`, after one that is under way, and write it while the caller continues.

        It counts when it is complete, as after `save`. `settle` raises the error of its write.
        """
        state = deepcopy(state)
        aside = await self._new_folder(step)
        with self._dropped_on_error(aside, step):
            write = await copy(aside)
        self._under_way = asyncio.create_task(self._complete(aside, step, write, state))

    async def settle(self, *, wait: bool = True) -> None:
        """Raise the error of the checkpoint under way, if it failed. `wait` for its end if it has not ended."""
        if self._under_way is not None and (wait or self._under_way.done()):
            task, self._under_way = self._under_way, None
            await task

    async def _new_folder(self, step: int) -> Path:
        await self.settle()
        self.folder.mkdir(parents=True, exist_ok=True)
        aside = self.folder / f".step_{step}.tmp"
        with self._dropped_on_error(aside, step):
            await asyncio.to_thread(self._clean_up)
            aside.mkdir()
        return aside

    async def _complete(
        self, aside: Path, step: int, write: Callable[[], Awaitable[None]], state: Mapping[str, Any]
    ) -> Checkpoint:
        with self._dropped_on_error(aside, step):
            await write()
            await asyncio.to_thread(_seal, aside, step, state)
            await asyncio.to_thread(self._publish, aside, step)
            self._verified.add(step)
            self._damaged.discard(step)
        await asyncio.to_thread(self._prune)
        return Checkpoint(step=step, path=self.folder / f"step_{step}", state=dict(state))

    @contextmanager
    def _dropped_on_error(self, aside: Path, step: int) -> Iterator[None]:
        """Remove the files after an error of the body, and name a full disk and denied access."""
        try:
            yield
        except BaseException as e:
            full = _disk_is_full(e, self.folder)
            shutil.rmtree(aside, ignore_errors=True)
            if full:
                raise HamrError(
                    f"checkpoint of step {step}: no space left on the disk of {self.folder}; free some, or set "
                    "experiment.run_dir to a larger disk, then resume with resume=<run folder>"
                ) from e
            if denied := _find_error(e, (errno.EACCES, errno.EPERM), "Permission denied"):
                path = getattr(denied, "filename", None) or self.folder
                remedy = "permission denied; let this user write to its folder, then resume with resume=<run folder>"
                raise RunFolderError(f"checkpoint of step {step}", str(path), remedy) from e
            raise

    def newest(self) -> Checkpoint | None:
        """Return the newest complete checkpoint, after a check of every byte of it.

        Skips incomplete and damaged ones with a warning.

        Raises:
            RunFolderError: There are checkpoints, but all are incomplete or damaged.
        """
        newest = next(self._whole(), None)
        if newest is None and (found := self._candidates()):
            step, path = max(found.items())
            remedy = f"{_check(path, step)[1]}, and no other checkpoint is whole; restore the file from a copy, or "
            raise RunFolderError("resume", str(path), f"{remedy}remove {self.folder} to start again")
        return newest

    def all(self) -> list[Checkpoint]:
        """Return complete checkpoints, newest first, after a quick check: large files by their size only, but
        without those that an earlier check found damaged."""
        return list(self._whole(quick=True))

    def policies(self) -> Iterator[Checkpoint]:
        """Yield checkpoints with a complete `policy/`, newest first; each is read whole. They may lack the state to
        resume a run: a pipeline keeps models only."""
        return self._whole("policy/")

    def _whole(self, part: str = "", *, quick: bool = False) -> Iterator[Checkpoint]:
        """Yield complete checkpoints. Only files whose names begin with `part` are required."""
        for step, path in sorted(self._candidates().items(), reverse=True):
            if quick and step in self._damaged:
                continue
            state, problem = _check(path, step, part, quick=quick or step in self._verified)
            if problem:
                if not quick:
                    self._damaged.add(step)
                log.warning("checkpoint %s is skipped: %s; restore the file from a copy to use it", path, problem)
                continue
            if not quick and not part:
                self._verified.add(step)
                self._damaged.discard(step)
            yield Checkpoint(step=step, path=path, state=state)

    def _candidates(self) -> dict[int, Path]:
        """Return the folder per step. If a replacement was interrupted, the previous version counts."""
        found: dict[int, Path] = {}
        for pattern in (r"\.step_(\d+)\.replaced", r"step_(\d+)"):
            for path in self.folder.iterdir() if self.folder.is_dir() else ():
                if (m := re.fullmatch(pattern, path.name)) and path.is_dir():
                    found[int(m[1])] = path
        return found

    def _publish(self, aside: Path, step: int) -> None:
        final, former = self.folder / f"step_{step}", self.folder / f".step_{step}.replaced"
        if final.exists():
            final.rename(former)
        aside.rename(final)
        _fsync(self.folder)
        shutil.rmtree(former, ignore_errors=True)

    def _prune(self) -> None:
        whole = self.all()
        if len(whole) <= self.keep:
            return
        oldest_kept = whole[self.keep - 1].step
        for step, path in self._candidates().items():
            if step < oldest_kept:
                # Rename first: a half-removed folder under its own name would look like a corrupt checkpoint.
                gone = self.folder / f".step_{step}.gone"
                path.rename(gone)
                shutil.rmtree(gone, ignore_errors=True)  # if files are left, the next start removes them

    def _clean_up(self) -> None:
        """Remove the files of a killed process, and restore a checkpoint whose replacement was interrupted."""
        for path in list(self.folder.iterdir()):
            if re.fullmatch(r"\.step_\d+\.(tmp|gone)", path.name):
                shutil.rmtree(path)
            elif m := re.fullmatch(r"\.(step_\d+)\.replaced", path.name):
                final = self.folder / m[1]
                if final.exists():
                    shutil.rmtree(path)
                else:
                    path.rename(final)


def _seal(folder: Path, step: int, state: Mapping[str, Any]) -> None:
    """Write state.json with the manifest, last, and flush every file and folder to the disk."""
    digests = {p: p.read_text() for p in folder.rglob(f"*{DIGEST_SUFFIX}")}
    for path in digests:
        path.unlink()
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    manifest = {
        str(p.relative_to(folder)): {
            "bytes": p.stat().st_size,
            "sha256": digests.get(p.with_name(p.name + DIGEST_SUFFIX)) or _file_sha256(p),
        }
        for p in files
    }
    body = {"step": step, "state": state, "files": manifest}
    (folder / _STATE).write_text(json.dumps({**body, "sha256": _digest(body)}, indent=1, allow_nan=False))
    for path in [*files, folder / _STATE, *(p for p in folder.rglob("*") if p.is_dir()), folder]:
        _fsync(path)


def _check(folder: Path, step: int, part: str = "", *, quick: bool = False) -> tuple[dict[str, Any], str]:
    """Return a checkpoint's state and its defect ("" if none). Only files below `part` count.

    Checkpoints of hamr 0.1 have no checksum for large files, which are then compared by size.
    """
    try:
        body = json.loads((folder / _STATE).read_text())
        if body.pop("sha256") != _digest(body):
            return {}, f"{_STATE} does not match its checksum"
    except FileNotFoundError:
        return {}, f"{_STATE} is missing"
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}, f"{_STATE} is damaged"
    if body["step"] != step:
        return {}, f"{_STATE} belongs to step {body['step']}"
    for name, expected in body["files"].items():
        if not name.startswith(part):
            continue
        path = folder / name
        if not path.is_file():
            return {}, f"{name} is missing"
        if path.stat().st_size != expected["bytes"]:
            return {}, f"{name} has {path.stat().st_size} bytes instead of {expected['bytes']}"
        hashed = expected["sha256"] is not None and not (quick and expected["bytes"] > _QUICK_BYTES)
        if hashed and _file_sha256(path) != expected["sha256"]:
            return {}, f"{name} does not match its checksum"
    return body["state"], ""


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(body: Mapping[str, Any]) -> str:
    """Return the checksum of a JSON value. It is equal before writing and after reading."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _disk_is_full(error: BaseException, folder: Path) -> bool:
    """Return whether a full disk caused the error."""
    if _find_error(error, (errno.ENOSPC, errno.EDQUOT), "No space left on device"):
        return True
    return isinstance(error, Exception) and shutil.disk_usage(folder).free < 1 << 20


def _find_error(error: BaseException, codes: Container[int], text: str) -> BaseException | None:
    """Return the first cause with one of these codes, or with `text`, as torch and safetensors raise their own types
    without an errno."""
    seen: BaseException | None = error
    while seen is not None:
        if getattr(seen, "errno", None) in codes or text in str(seen):
            return seen
        seen = seen.__cause__ or seen.__context__
    return None
