"""Reward ledger: an append-only SQLite file with exactly one row per scored response."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

from hamr.errors import HamrError, RunFolderError
from hamr.security.redaction import blot
from hamr.telemetry.record_json import record_from_json, record_to_json
from hamr.types import RewardRecord

_VERSION = 2

_SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
    run TEXT NOT NULL, step INTEGER NOT NULL, prompt TEXT NOT NULL, turn INTEGER NOT NULL, sample INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    band TEXT NOT NULL,
    outcome TEXT NOT NULL,           -- scored, malformed_response, judge_timeout, ...
    total REAL,                      -- NULL where scoring failed
    s_r REAL, s_j REAL,
    response_tokens INTEGER NOT NULL,
    scorer_calls INTEGER NOT NULL, scorer_tokens INTEGER NOT NULL, cost REAL NOT NULL,
    seconds REAL NOT NULL,
    first_version INTEGER, last_version INTEGER,
    record TEXT NOT NULL,            -- the whole record as JSON
    UNIQUE (run, step, prompt, turn, sample, attempt)
);
CREATE VIEW IF NOT EXISTS components AS
    SELECT run, step, prompt, turn, sample, attempt,
           json_extract(c.value, '$.name') AS name,
           json_extract(c.value, '$.weight') AS weight,
           json_extract(c.value, '$.outcome.kind') AS outcome,
           json_extract(c.value, '$.outcome.value') AS value
    FROM records, json_each(record, '$.components') AS c;
"""


class Ledger:
    """Append-only ledger with key (run, step, prompt, turn, sample, attempt). A record that is added twice counts once.

    Other processes can read during writes (SQLite's WAL). `add` is one transaction: a process that is killed during it
    leaves all of its records or none. It is thread-safe.

    Open with `readonly=True` to read a run, active or not.
    """

    def __init__(self, path: Path | str, *, readonly: bool = False) -> None:
        self.path = Path(path)
        if readonly and not self.path.is_file():
            raise HamrError(f"{self.path}: no such ledger")
        uri = f"{self.path.absolute().as_uri()}?mode={'ro' if readonly else 'rwc'}"
        self._lock = threading.Lock()
        with self._disk_errors_named():
            self._db = sqlite3.connect(uri, uri=True, timeout=30.0, check_same_thread=False, isolation_level=None)
            try:
                self._open(readonly)
            except BaseException:
                self._db.close()
                raise

    def _open(self, readonly: bool) -> None:
        if not readonly:
            # NORMAL flushes at checkpoints only: a killed process loses nothing, a power failure at most the last
            # steps.
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(_SCHEMA)
            if self._version() == 0:
                self._db.execute(f"PRAGMA user_version={_VERSION}")
        if self._version() != _VERSION:
            raise HamrError(f"{self.path}: not a ledger, or written by another version of hamr")

    def _version(self) -> int:
        return self._db.execute("PRAGMA user_version").fetchone()[0]

    @contextlib.contextmanager
    def _disk_errors_named(self) -> Iterator[None]:
        """Convert errors of SQLite that the disk, the permissions or another file cause to one line with the path."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest of the number is a detail
            if code == sqlite3.SQLITE_FULL:
                raise HamrError(f"{self.path}: no space left on the disk; free some, then resume the run") from error
            if code == sqlite3.SQLITE_IOERR:
                raise HamrError(f"{self.path}: {error}; repair the disk, then resume the run") from error
            if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
                remedy = f"{error}; give this user access to the file and to its folder"
                raise RunFolderError("ledger", str(self.path), remedy) from error
            if code == sqlite3.SQLITE_CORRUPT:
                raise HamrError(f"{self.path}: {error}; restore the file") from error
            if code == sqlite3.SQLITE_NOTADB:
                remedy = "not a ledger; give the ledger.sqlite of a run"
                raise RunFolderError("ledger", str(self.path), remedy) from None
            raise

    def add(self, records: Iterable[RewardRecord]) -> int:
        """Add new records, all or none. Return the number of new rows.

        Like the other methods that write, it raises HamrError if the disk is full or the file cannot be written.
        """
        rows = [_row(r) for r in records]
        if not rows:
            return 0
        marks = ",".join("?" * len(rows[0]))
        with self._disk_errors_named(), self._lock:
            before = self._db.total_changes
            try:
                self._db.execute("BEGIN IMMEDIATE")
                self._db.executemany(f"INSERT OR IGNORE INTO records VALUES ({marks})", rows)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # SQLite has rolled back by itself if the disk is full
                    self._db.execute("ROLLBACK")
                raise
            return self._db.total_changes - before

    def discard_after(self, run: str, step: int) -> int:
        """Delete the records after `step` of `run` and its evaluations (`run/eval-...`). Return the number of rows.

        A run that resumes from a checkpoint of that step repeats the later steps with a new policy.
        """
        within = f"{run}/"
        return self._delete("(run = ? OR substr(run, 1, ?) = ?) AND step > ?", run, len(within), within, step)

    def discard(self, run: str, step: int, prompt: str, attempts: range) -> int:
        """Delete the records of these attempts at one prompt. Return the number of rows."""
        these = "run = ? AND step = ? AND prompt = ? AND attempt >= ? AND attempt < ?"
        return self._delete(these, run, step, prompt, attempts.start, attempts.stop)

    def discard_step(self, run: str, step: int) -> int:
        """Delete the records of a step of exactly this run. Return the number of rows."""
        return self._delete("run = ? AND step = ?", run, step)

    def _delete(self, these: str, *values: object) -> int:
        with self._disk_errors_named(), self._lock, self._db:
            return self._db.execute(f"DELETE FROM records WHERE {these}", values).rowcount

    def rows(
        self, *, run: str | None = None, step: int | None = None, since: int | None = None
    ) -> Iterator[RewardRecord]:
        """Yield records in the order of insertion, optionally of one run, of one step, or from step `since` on."""
        wanted = [("run = ?", run), ("step = ?", step), ("step >= ?", since)]
        used = [(clause, value) for clause, value in wanted if value is not None]
        where = " WHERE " + " AND ".join(c for c, _ in used) if used else ""
        with self._disk_errors_named():
            cursor = self._db.execute(f"SELECT record FROM records{where} ORDER BY rowid", [v for _, v in used])
            for (text,) in cursor:
                try:
                    record = record_from_json(text)
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    raise HamrError(f"{self.path}: a damaged record, {text[:60]!r}; restore the file") from error
                yield record

    def count(self) -> int:
        with self._disk_errors_named():
            return self._db.execute("SELECT COUNT(*) FROM records").fetchone()[0]

    def query(self, sql: str, *parameters: object) -> list[tuple]:
        """Run a read-only SQL query over the table `records` and the view `components`."""
        with self._disk_errors_named():
            return self._db.execute(sql, parameters).fetchall()

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _row(record: RewardRecord) -> tuple:
    key = record.key
    versions = [span.version for span in record.versions]
    return (
        key.run,
        key.step,
        key.prompt,
        key.turn,
        key.sample,
        key.attempt,
        record.band,
        record.total.kind,
        record.reward,
        record.s_r,
        record.s_j,
        record.response_tokens,
        len(record.calls),
        sum(c.prompt_tokens + c.output_tokens for c in record.calls),
        sum(c.cost for c in record.calls),
        record.seconds,
        min(versions, default=None),
        max(versions, default=None),
        blot(record_to_json(record)),
    )
