"""SIGTERM to a run that is in mid-step: what it learned is kept, it ends well and soon, and says how to go on."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from hamr.jobs.status import main as status
from hamr.observability.checkpoints import Checkpoints
from hamr.observability.ledger import Ledger
from hamr.observability.live import LiveStatus
from tests.e2e.runs import hamr

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(200)]


def test_a_run_that_is_told_to_end_keeps_what_it_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {
        "experiment": "smoke",
        "experiment.steps": 1000,
        "logging.console": True,
        "experiment.run_dir": "run",
        "algorithm.dynamic_sampling.enabled": False,
    }
    pipe = subprocess.PIPE
    process = subprocess.Popen(hamr("train", **settings), cwd=tmp_path, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    try:
        assert any("rl step 2/" in line for line in process.stdout)
        _end_and_check(process, tmp_path)
    finally:
        process.terminate()  # a test that failed leaves no run behind
        process.wait(60)
    with Ledger(tmp_path / "run" / "ledger.sqlite", readonly=True) as ledger:
        calls = {(call.pool, call.model) for record in ledger.rows() for call in record.calls}
    assert calls == {("reranker", "tiny"), ("judge", "tiny")}, "both scorers are engines here"
    assert status([str(tmp_path / "run")]) == 0
    assert "preempted" in capsys.readouterr().out


def _end_and_check(process: subprocess.Popen[str], tmp_path: Path) -> None:
    seen = LiveStatus.read(tmp_path / "run")
    assert seen is not None and seen.alive() and seen.phase == "rl"
    assert len(seen.pools["judge"]["pids"]) == 1
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    newest = Checkpoints(tmp_path / "run" / "checkpoints").newest()
    assert newest is not None and newest.step >= 2
    assert f"step {newest.step} of 1000 is kept; go on with: hamr train resume={tmp_path / 'run'}" in err
    stream = newest.state["stream"]
    # Two prompts a step from epochs of 24: what a dropped step had taken is not counted as used.
    assert 24 * stream["epoch"] + stream["index"] == 2 * newest.step
