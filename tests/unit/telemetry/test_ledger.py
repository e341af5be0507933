import contextlib
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hamr.errors import HamrError, RunFolderError
from hamr.telemetry.ledger import Ledger
from hamr.telemetry.record_json import outcome_from_dict, record_from_json, record_to_json
from hamr.types import Component, JudgeTimeout, RewardRecord, SampleKey, Scored, VersionSpan
from tests.permissions import file_permissions_enforced
from tests.unit.telemetry.records import call, record, records


@given(records)
def test_record_survives_the_json_round_trip(r):
    line = record_to_json(r)
    assert "\n" not in line
    assert record_from_json(line) == r


def test_non_finite_numbers_are_rejected():
    with pytest.raises(HamrError, match="not finite"):
        record_to_json(record(total=float("nan")))


def test_an_unknown_kind_of_outcome_is_named():
    with pytest.raises(HamrError, match="'from_the_future'"):
        outcome_from_dict({"kind": "from_the_future", "detail": ""})


@given(st.lists(records, max_size=8, unique_by=lambda r: r.key))
@settings(max_examples=20, deadline=None)
def test_rows_return_added_records_in_order(rs):
    with tempfile.TemporaryDirectory() as folder, Ledger(Path(folder) / "l.sqlite") as ledger:
        assert ledger.add(rs) == len(rs)
        assert list(ledger.rows()) == rs
        assert ledger.add(rs) == 0
        assert ledger.count() == len(rs)


def test_first_record_of_a_key_is_kept(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as ledger:
        assert ledger.add([record(0, 0.25), record(0, 0.75), record(1, 0.5)]) == 2
        assert ledger.add([record(0, 1.0)]) == 0
        assert [r.total for r in ledger.rows()] == [Scored(value=0.25), Scored(value=0.5)]


@pytest.mark.parametrize("part", ["run", "step", "prompt", "turn", "sample", "attempt"])
def test_every_part_of_the_key_distinguishes_records(tmp_path, part):
    first = record(0)
    other = replace(first, key=replace(first.key, **{part: "other" if part in ("run", "prompt") else 9}))
    with Ledger(tmp_path / "l.sqlite") as ledger:
        assert ledger.add([first, other]) == 2


def test_scalar_columns_and_components_can_be_queried(tmp_path):
    parts = (
        Component(name="consistency", outcome=Scored(value=0.5), weight=2.0),
        Component(name="format", outcome=JudgeTimeout(detail="30 s"), weight=1.0),
    )
    r = record(
        3,
        JudgeTimeout(detail="30 s"),
        step=7,
        band="below",
        components=parts,
        s_r=0.25,
        calls=(call("reranker", tokens=10, cost=0.5), call("judge", tokens=20, cost=0.25)),
        versions=(VersionSpan(version=4, start=0, end=2), VersionSpan(version=5, start=2, end=4)),
    )
    with Ledger(tmp_path / "l.sqlite") as ledger:
        ledger.add([r])
        row = ledger.query(
            "SELECT run, step, prompt, sample, attempt, band, outcome, total, s_r, s_j, response_tokens, scorer_calls, "
            "scorer_tokens, cost, first_version, last_version FROM records"
        )
        assert row == [("r", 7, "p", 3, 0, "below", "judge_timeout", None, 0.25, None, 4, 2, 32, 0.75, 4, 5)]
        assert ledger.query("SELECT name, weight, outcome, value FROM components ORDER BY name") == [
            ("consistency", 2.0, "scored", 0.5),
            ("format", 1.0, "judge_timeout", None),
        ]


def test_rows_can_be_filtered_by_step_or_run(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as ledger:
        ledger.add([record(0, step=s) for s in (1, 2, 3)])
        assert [r.key.step for r in ledger.rows(step=2)] == [2]
        assert [r.key.step for r in ledger.rows(since=2)] == [2, 3]
        assert list(ledger.rows(run="other")) == []


def test_ledger_can_be_read_while_written(tmp_path):
    path = tmp_path / "l.sqlite"
    with Ledger(path) as writer:
        writer.add([record(0)])
        with Ledger(path, readonly=True) as reader:
            rows = reader.rows()
            assert next(rows).key.sample == 0
            writer.add([record(1)])
            assert reader.count() == 2
            for write in (lambda: reader.add([record(2)]), lambda: reader.discard_after("r", 0)):
                with pytest.raises(RunFolderError, match=r"l\.sqlite': attempt to write a readonly database; give"):
                    write()


def test_full_disk_raises_one_error_and_adds_nothing(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as ledger:
        ledger.add([record(0)])
        # SQLite's own limit raises the very error that a full disk does.
        (pages,) = ledger.query("PRAGMA page_count")[0]
        ledger.query(f"PRAGMA max_page_count={pages}")
        with pytest.raises(HamrError, match="no space left on the disk"):
            ledger.add([record(i) for i in range(1, 500)])
        assert ledger.count() == 1
        ledger.query("PRAGMA max_page_count=100000")
        assert ledger.add([record(1)]) == 1


@contextlib.contextmanager
def failing_disk():
    """The kernel refuses every write to a file, which SQLite reports as an I/O error."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(
    "write",
    [
        lambda ledger: ledger.add([record(1)]),
        lambda ledger: ledger.discard_after(record(0).key.run, 0),
        lambda ledger: ledger.discard(record(0).key.run, 1, "p", range(9)),
        lambda ledger: Ledger(ledger.path.with_name("new.sqlite")),
    ],
    ids=["add", "discard_after", "discard", "open"],
)
def test_failing_disk_raises_one_error_with_the_path(tmp_path, write):
    with Ledger(tmp_path / "l.sqlite") as ledger:
        ledger.add([record(0, step=1)])
        with failing_disk(), pytest.raises(HamrError, match=r"^/.*\.sqlite: disk I/O error; repair the disk"):
            write(ledger)
        assert ledger.count() == 1


@pytest.mark.parametrize(
    ("locked", "mode", "why"),
    [("l.sqlite", 0o444, "attempt to write a readonly database"), (".", 0o000, "unable to open database file")],
)
def test_ledger_without_access_is_refused_with_its_path(tmp_path, locked, mode, why):
    folder = tmp_path / "run"
    folder.mkdir()
    Ledger(folder / "l.sqlite").close()
    (folder / locked).chmod(mode)
    try:
        with (
            file_permissions_enforced(),
            pytest.raises(RunFolderError, match=f"{folder}/l.sqlite': {why}; give this user access"),
            Ledger(folder / "l.sqlite") as ledger,
        ):
            ledger.add([record(0)])
    finally:
        (folder / locked).chmod(0o755)


def test_threads_may_add_concurrently(tmp_path):
    with Ledger(tmp_path / "l.sqlite") as ledger:
        inserted = []
        work = [[record(i, step=s) for i in range(20)] for s in (1, 1, 2, 2)]
        threads = [threading.Thread(target=lambda rs=rs: inserted.append(ledger.add(rs))) for rs in work]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert sum(inserted) == ledger.count() == 40


def test_missing_or_foreign_file_is_rejected(tmp_path):
    with pytest.raises(HamrError, match="no such ledger"):
        Ledger(tmp_path / "none.sqlite", readonly=True)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE t (x)")
    with pytest.raises(HamrError, match="another version"):
        Ledger(other, readonly=True)


def test_damaged_ledger_is_reported_with_its_path(tmp_path):
    path = tmp_path / "ledger.sqlite"
    with Ledger(path) as ledger:
        ledger.add([record(sample=i) for i in range(200)])
    with sqlite3.connect(path) as db:
        db.execute("UPDATE records SET record = '{}' WHERE sample = 7")
    with (
        Ledger(path, readonly=True) as ledger,
        pytest.raises(HamrError, match=r"ledger\.sqlite: a damaged record, '{}'"),
    ):
        list(ledger.rows())
    db.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(2 * 4096)
        file.write(b"\xff" * (size - 3 * 4096))
    with Ledger(path, readonly=True) as ledger, pytest.raises(HamrError, match=r"ledger\.sqlite: .*malformed; restore"):
        list(ledger.rows())


WRITER = """
import sys
from hamr.telemetry.ledger import Ledger
from tests.unit.telemetry.records import record
ledger = Ledger(sys.argv[1])
for step in range(1, 100000):
    print(step, flush=True)  # about to write 50 rows
    ledger.add([record(i, step=step) for i in range(50)])
"""


@pytest.mark.parametrize("lines", [1, 4, 17])
def test_writer_killed_during_a_write_leaves_whole_steps(tmp_path, lines):
    path = tmp_path / "l.sqlite"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    for _ in range(lines):
        announced = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    # What it still had announced before it died counts too.
    announced = max([announced, *(int(line) for line in writer.stdout.read().split("\n") if line)])
    writer.wait()
    with Ledger(path) as ledger:
        per_step = dict(ledger.query("SELECT step, COUNT(*) FROM records GROUP BY step"))
        assert all(n == 50 for n in per_step.values())
        assert set(range(1, announced)) <= set(per_step) <= set(range(1, announced + 1))
        assert ledger.query("PRAGMA integrity_check") == [("ok",)]
        again = [record(i, step=announced) for i in range(50)]
        assert ledger.add(again) == 50 - per_step.get(announced, 0)


def test_resumed_run_deletes_records_after_its_checkpoint(tmp_path: Path) -> None:
    def at(run: str, step: int) -> RewardRecord:
        outcome = Scored(value=1.0)
        key = SampleKey(run=run, step=step, prompt="p", sample=0)
        return RewardRecord(key=key, total=outcome, components=(), action=None, band="none")

    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        others = [at("b", 3), at("ab/eval-rl", 3)]
        ledger.add([at("a", 1), at("a", 2), at("a", 3), at("a/eval-sft", 0), at("a/eval-rl-2", 2), *others])
        assert ledger.discard_after("a", 1) == 3
        left = [("a", 1), ("a/eval-sft", 0), ("b", 3), ("ab/eval-rl", 3)]
        assert [(r.key.run, r.key.step) for r in ledger.rows()] == left
        assert ledger.add([at("a", 2)]) == 1


def test_records_of_a_repeated_draw_are_deleted(tmp_path: Path) -> None:
    def at(prompt: str, attempt: int) -> RewardRecord:
        key = SampleKey(run="a", step=1, prompt=prompt, sample=0, attempt=attempt)
        return RewardRecord(key=key, total=Scored(value=1.0), components=(), action=None, band="none")

    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.add([at("p", 0), at("p", 1), at("p", 2), at("q", 0)])
        assert ledger.discard("a", 1, "p", range(2)) == 2
        assert [(r.key.prompt, r.key.attempt) for r in ledger.rows()] == [("p", 2), ("q", 0)]
