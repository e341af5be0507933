"""Output of `hamr score`: one record per line, in input order, resumable after any interruption.

The records show how far the job came. The sidecar file stores what they belong to: the settings that determine a score,
and a digest of the scored part of the input. A partly written group is scored again, so a resumed file equals the file
of an uninterrupted run.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from hamr.bench.folder import differences
from hamr.data.responses import ResponseGroup, stream_groups
from hamr.errors import BadInput, DataError, HamrError
from hamr.files import try_lock, write_atomic
from hamr.security.redaction import blot
from hamr.telemetry.record_json import record_from_json, record_to_json
from hamr.types import RewardRecord

SIDECAR = ".resume.json"
_CHUNK = 1 << 20

Groups = Iterator[tuple[ResponseGroup, bytes]]


@dataclass(frozen=True, kw_only=True)
class ScoringProgress:
    """Scored part of the input in groups, responses and bytes."""

    groups: int = 0
    responses: int = 0
    bytes: int = 0


class ScoreOutput:
    """Output file that is written group by group. A context manager; locked by one process at a time.

    A new file without a record is removed if an exception ends the context."""

    def __init__(
        self,
        path: Path,
        source: Path,
        settings: Mapping[str, Any],
        *,
        resume: bool,
        skip: Callable[[DataError], None] | None = None,
    ) -> None:
        """Open the output. Nothing is changed on error. `skip` receives invalid lines of the source (None: raise).

        Raises BadInput when the output exists without `resume`, belongs to another job, is damaged or is being written.
        """
        self.path, self.source, self._skip = path, source, skip
        self.settings = json.loads(json.dumps(settings))
        self.sidecar = path.with_name(path.name + SIDECAR)
        self.done = ScoringProgress()
        self._digest = hashlib.sha256()
        self.fresh = not path.exists() or not path.stat().st_size
        if not self.fresh and not resume:
            raise BadInput("output", str(path), "exists; continue with resume=true, or name another file")
        self._file = _lock_file(path)
        try:
            if self.fresh:
                self._note()
            else:
                self._check_sidecar()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> ScoreOutput:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()
        if error is not None and self.fresh and not self.done.responses:  # such as a pool that did not start
            self.path.unlink()
            self.sidecar.unlink()

    def remaining(self, seen: Callable[[Sequence[RewardRecord]], None]) -> Groups:
        """Yield the input's groups that are not scored yet.

        Passes the records of the others to `seen` and truncates the file after them. Raises BadInput for a record that
        does not match its line.
        """
        groups = stream_groups(self.source, self._skip)
        self._file.seek(0)
        end = 0
        for group, raw in groups:
            records, size = self._read_group(group)
            if records is None:
                groups = chain([(group, raw)], groups)
                self._file.truncate(end)
                break
            end += size
            self._count(group, raw)
            seen(records)
        else:
            if self._file.read(1):
                raise BadInput("output", str(self.path), "holds more records than the input has; name another file")
        self._file.seek(end)
        return groups

    def read_records(self) -> Iterator[list[RewardRecord]]:
        """Yield the records of each complete group, in input order."""
        self._file.seek(0)
        for group, _ in stream_groups(self.source, self._skip):
            records, _ = self._read_group(group)
            if records is None:
                return
            yield records

    def replace(self, other: ScoreOutput) -> None:
        """Rename this output over `other`. The older sidecar is valid for the longer file too."""
        self.path.replace(other.path)
        self.sidecar.replace(other.sidecar)

    def write(self, group: ResponseGroup, raw: bytes, records: Sequence[RewardRecord]) -> None:
        """Write and flush one group's records, so that they survive a killed process."""
        self._file.write("".join(_line(record) + "\n" for record in records).encode())
        self._file.flush()
        self._count(group, raw)
        self._note()

    def _count(self, group: ResponseGroup, raw: bytes) -> None:
        self._digest.update(raw)
        d = self.done
        self.done = ScoringProgress(
            groups=d.groups + 1, responses=d.responses + len(group.responses), bytes=d.bytes + len(raw)
        )

    def _read_group(self, group: ResponseGroup) -> tuple[list[RewardRecord] | None, int]:
        """Return the group's records and their size in bytes; None if the group is incomplete."""
        records, size = [], 0
        for index, text in enumerate(group.responses):
            line = self._file.readline()
            record = _parse(line)
            place = f"the record of response {index + 1} of {self.source}:{group.number}"
            if record is None:
                if line.endswith(b"\n") and self._file.read(1):
                    raise BadInput("output", str(self.path), f"{place} is damaged, others follow; name another file")
                return None, 0
            key = record.key
            if (key.step, key.prompt, key.sample, record.response) != (group.number, group.sample.id, index, text):
                raise BadInput("output", str(self.path), f"{place} belongs to another; name another file")
            records.append(record)
            size += len(line)
        return records, size

    def _note(self) -> None:
        noted = {"settings": self.settings, "input": {"bytes": self.done.bytes, "sha256": self._digest.hexdigest()}}
        write_atomic(self.sidecar, json.dumps(noted) + "\n")

    def _check_sidecar(self) -> None:
        """Refuse changed settings, and an input whose scored part has changed.

        Lines after the scored part may be new or corrected.
        """
        try:
            noted = json.loads(self.sidecar.read_text(encoding="utf-8"))
            before, size, digest = noted["settings"], noted["input"]["bytes"], noted["input"]["sha256"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            remedy = f"cannot be resumed: {self.sidecar.name} is missing or unreadable; name another file"
            raise BadInput("output", str(self.path), remedy) from error
        changed = next(differences(before, self.settings), None)
        if changed is not None:
            key, was, now = changed
            remedy = f"was started with {key}={was!r}, which is now {now!r}; restore it, or name another file"
            raise BadInput("output", str(self.path), remedy)
        if _digest_of(self.source, size) != digest:
            remedy = f"has changed in its first {size} bytes, which are scored in {self.path}; name another output"
            raise BadInput("input", str(self.source), remedy)


def _line(record: RewardRecord) -> str:
    """Return a record as JSON without secrets. Its response is verbatim, since a resumption compares it."""
    text = record_to_json(record)
    clean = blot(text)
    return text if clean == text else json.dumps({**json.loads(clean), "response": record.response})


def _parse(line: bytes) -> RewardRecord | None:
    """Return the record of a complete line; None for a truncated or invalid one."""
    if not line.endswith(b"\n"):
        return None
    try:
        return record_from_json(line.decode())
    except (ValueError, KeyError, TypeError, HamrError):
        return None


def _lock_file(path: Path) -> IO[bytes]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
    except OSError as error:
        raise BadInput("output", str(path), f"cannot be written: {error.strerror}") from error
    if not try_lock(file):
        file.close()
        raise BadInput("output", str(path), "another `hamr score` is writing it; wait for it, or name another")
    return file


def _digest_of(path: Path, size: int) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while size > 0 and (chunk := file.read(min(_CHUNK, size))):
            digest.update(chunk)
            size -= len(chunk)
    return digest.hexdigest()
