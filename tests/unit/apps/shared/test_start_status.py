"""Status of a run while it starts."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hamr.apps.shared.commands import parse_command
from hamr.apps.shared.start_status import StartStatus
from hamr.errors import BadInput
from hamr.telemetry.control_requests import ControlRequests
from hamr.telemetry.live import LiveStatus, find_run
from hamr.telemetry.run_folder import RunFolder


def test_status_shows_the_phase_before_the_folder_has_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "runs" / "mine"
    with StartStatus(folder, "mine", lambda: "model and data") as starting:
        assert parse_command(["status", str(folder)]).run() == 0
        assert "run mine: starting, model and data (process " in capsys.readouterr().out
        assert folder.stat().st_mode & 0o777 == 0o700
        with RunFolder.create(folder, "a: 1"):
            starting.hand_over()
    seen = LiveStatus.read(folder)
    assert seen is not None and seen.state == "starting", "the run's live control writes its later states"


def test_phase_is_followed_while_the_main_thread_is_busy(tmp_path: Path) -> None:
    asked = threading.Semaphore(0)
    phases = iter(["model and data", *["scorers"] * 10_000])

    def phase() -> str:
        asked.release()
        return next(phases)

    with StartStatus(tmp_path / "r", "r", phase, period_s=0.001):
        for _ in range(3):  # the second status is written before the third is asked for
            assert asked.acquire(timeout=30)
        seen = LiveStatus.read(tmp_path / "r")
        assert seen is not None and seen.phase == "scorers"


def test_failed_start_of_a_new_run_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "mine"
    with pytest.raises(BadInput), StartStatus(folder, "mine", lambda: "scorers"):
        raise BadInput("data", "x", "no such file")
    assert list(tmp_path.iterdir()) == []


def test_failed_start_after_the_folder_was_created_is_recorded(tmp_path: Path) -> None:
    def fail() -> None:
        RunFolder.create(tmp_path / "r", "a: 1").close()
        raise BadInput("cluster.address", "x", "cannot be reached")

    with pytest.raises(BadInput), StartStatus(tmp_path / "r", "r", lambda: "Ray"):
        fail()
    seen = LiveStatus.read(tmp_path / "r")
    assert seen is not None
    assert (seen.state, seen.detail) == ("failed", "cluster.address: 'x': cannot be reached")


def test_stopped_start_of_a_resumed_run_is_preempted(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "r", "a: 1").close()
    with pytest.raises(SystemExit), StartStatus(tmp_path / "r", "r", lambda: "Ray"):
        raise SystemExit(143)
    seen = LiveStatus.read(tmp_path / "r")
    assert seen is not None and seen.state == "preempted"


def test_folder_of_a_running_process_is_left_alone(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "r", "a: 1") as held:
        with pytest.raises(BadInput), StartStatus(held.path, "r", lambda: "Ray"):
            RunFolder.resume(held.path)
        assert LiveStatus.read(held.path) is None


def test_start_heeds_a_request_to_stop(tmp_path: Path) -> None:
    stopped = threading.Event()
    with StartStatus(tmp_path / "r", "r", lambda: "scorers", stop=stopped.set, period_s=0.01):
        assert ControlRequests(find_run(str(tmp_path / "r"))).ask({"stop": True}, timeout_s=30) == {"stopping": True}
        assert stopped.wait(30)
        RunFolder.create(tmp_path / "r", "a: 1").close()
