"""Run folder: layout of a run's output, and its lock.

config.yaml  metrics.jsonl  ledger.sqlite  samples.jsonl  summary.json  report.html
plots/*.png  checkpoints/step_<n>/  wandb/  run.id  run.lock
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from hamr.errors import RunFolderError
from hamr.files import write_atomic
from hamr.security.processes import has_ended, identity, is_visible
from hamr.security.redaction import redact

_LOCK = "run.lock"
_ID = "run.id"
_BEFORE = {_LOCK, "status.json", ".status.json.tmp", "requests"}
"""Names in a folder before its run is created: its lock, the status of its start, and requests to it."""


class RunFolder:
    """Folder of one run, owned by one process at a time.

    `create` and `resume` take the lock; `open` only reads (a report, a status) and takes none. Release it with
    `close()` or as a context manager. A process that dies without it leaves a stale lock, which the next one takes
    over.
    """

    def __init__(self, path: Path, *, locked: bool) -> None:
        self.path = path
        self.config = path / "config.yaml"
        self.metrics = path / "metrics.jsonl"
        self.ledger = path / "ledger.sqlite"
        self.samples = path / "samples.jsonl"
        self.summary = path / "summary.json"
        self.report = path / "report.html"
        self.plots = path / "plots"
        self.checkpoints = path / "checkpoints"
        self._locked = locked

    @classmethod
    def create(cls, path: Path | str, config_yaml: str) -> RunFolder:
        """Create a run folder with `config.yaml`, without secrets.

        Raises RunFolderError if the folder is not empty, is in use, or cannot be created.
        """
        path = Path(path).absolute()
        cls.refuse_if_used(path)
        try:
            # A run folder holds customers' dialogues.
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _take_lock(path)
            folder = cls(path, locked=True)
            try:
                # Check again under the lock: another run may have created and left files since the first check.
                cls.refuse_if_used(path)
                folder.plots.mkdir()
                folder.checkpoints.mkdir()
                write_atomic(path / _ID, folder.id + "\n")
                shown = _without_secrets(yaml.safe_load(config_yaml))
                write_atomic(folder.config, yaml.safe_dump(shown, sort_keys=False, allow_unicode=True, width=120))
            except BaseException:
                folder.close()
                raise
        except OSError as e:
            raise RunFolderError(
                "experiment.run_dir", str(path), f"cannot be created ({e.strerror}); give a writable folder"
            ) from e
        return folder

    @staticmethod
    def refuse_if_used(path: Path | str) -> None:
        """Raise RunFolderError if a new run cannot use this folder. Creates nothing, so it can be called early."""
        path = Path(path).absolute()
        if path.exists() and not path.is_dir():
            raise RunFolderError("experiment.run_dir", str(path), "is a file; give a folder")
        if path.is_dir() and any(p.name not in _BEFORE for p in path.iterdir()):
            raise RunFolderError(
                "experiment.run_dir",
                str(path),
                f"exists and is not empty; give another folder, or resume that run with resume={path}",
            )

    @classmethod
    def resume(cls, path: Path | str) -> RunFolder:
        """Open the folder of an earlier run for writing. Raises RunFolderError if it is not one or is in use."""
        folder = cls.open(path)
        try:
            _take_lock(folder.path)
            folder._locked = True
            folder.plots.mkdir(exist_ok=True)
            folder.checkpoints.mkdir(exist_ok=True)
            write_atomic(folder.path / _ID, folder.id + "\n")
        except OSError as e:
            raise RunFolderError("resume", str(path), f"is not writable ({e.strerror}); check its owner") from e
        return folder

    @classmethod
    def open(cls, path: Path | str, key: str = "resume") -> RunFolder:
        """Open the folder of an earlier run for reading. Raises RunFolderError, with the option `key`, if it is not
        one."""
        path = Path(path).absolute()
        if not (path / "config.yaml").is_file():
            remedy = "has no config.yaml, so it is not a run folder; give the folder that the run printed"
            raise RunFolderError(key, str(path), remedy if path.exists() else "no such folder; check the path")
        return cls(path, locked=False)

    @property
    def id(self) -> str:
        """The run's name in keys, with characters that every backend accepts.

        It is the folder's name at the time of the run's creation, so that a renamed folder continues the same run.
        Folders of hamr 0.1 have no `run.id`; there it is the present name.
        """
        try:
            kept = (self.path / _ID).read_text(encoding="utf-8").strip()
        except (FileNotFoundError, NotADirectoryError):
            kept = ""
        return re.sub(r"[^A-Za-z0-9_.]+", "-", kept or self.path.resolve().name).strip("-") or "run"

    def close(self) -> None:
        """Release the lock. Later calls do nothing."""
        if self._locked:
            self._locked = False
            with _lock_file(self.path) as f:
                if _owner(f) == identity():
                    _write(f, "")

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def owner_of(path: Path, lock: str = _LOCK) -> dict[str, Any] | None:
    """Return the `identity` of the process that holds a folder, by default of a run, or None. It may have ended."""
    try:
        return json.loads((path / lock).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


# --- the lock ----------------------------------------------------------------------------------
# The file names its owner. A kernel lock guards only the few microseconds in which it is read and rewritten: held for
# the whole run, it would be inherited by forked children and outlive the run.


@contextmanager
def _lock_file(folder: Path) -> Iterator[int]:
    fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def _owner(fd: int) -> dict[str, Any] | None:
    """Return the owner named in the file, or None if it names none, as after an incomplete write of a dead process."""
    os.lseek(fd, 0, os.SEEK_SET)
    try:
        found = json.loads(os.read(fd, 4096))
    except ValueError:
        return None
    is_owner = isinstance(found, dict) and found.keys() >= identity().keys() and isinstance(found["pid"], int)
    return found if is_owner else None


def _write(fd: int, text: str) -> None:
    os.ftruncate(fd, 0)
    os.lseek(fd, 0, os.SEEK_SET)
    os.write(fd, text.encode())


def discard_lock(path: Path) -> None:
    """Remove the lock of a run whose owner is known to be gone, on whatever machine it was."""
    (path / _LOCK).unlink(missing_ok=True)


def _take_lock(folder: Path) -> None:
    with _lock_file(folder) as fd:
        owner, me = _owner(fd), identity()
        if owner is not None:
            elsewhere = not is_visible(owner)  # on another host, or in another container
            if not has_ended(owner):
                where = f" on {owner['host']}" if elsewhere else ""
                remedy = f"is in use by process {owner['pid']}{where}; wait for it or give another folder"
                if elsewhere:
                    remedy += f" (if that process is gone, remove {folder / _LOCK})"
                raise RunFolderError("experiment.run_dir", str(folder), remedy)
        _write(fd, json.dumps(me))


def _without_secrets(config: Any) -> Any:
    """Return the configuration for the run folder. `launch.secret` is only the name of a Kubernetes Secret."""
    shown = redact(config)
    if config and "secret" in (config.get("launch") or {}):
        shown["launch"]["secret"] = redact(config["launch"], names=False)["secret"]
    return shown
