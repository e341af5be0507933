"""One run that is stopped in three phases and resumed twice: it ends, leaves no process, and keeps what is finished."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hamr.apps.shared.commands import parse_command
from hamr.telemetry.ledger import Ledger
from hamr.telemetry.live import LiveStatus
from hamr.telemetry.metrics import read_metrics
from hamr.trainer.checkpoints import Checkpoints
from tests.e2e.runs import LIGHT_RERANKER, hamr
from tests.killing import children, kill_all, still_there

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SETTINGS = LIGHT_RERANKER | {
    "experiment": "smoke",
    "experiment.steps": 1000,
    "experiment.sft.steps": 20,
    "logging.console": True,
    "experiment.run_dir": "run",
    "algorithm.dynamic_sampling.enabled": False,
}


@contextlib.contextmanager
def running(cwd: Path, until: str, **settings: object) -> Iterator[subprocess.Popen[str]]:
    """A run that has printed `until`. Whatever happens, it leaves no process behind."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(hamr("train", **settings), cwd=cwd, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    try:
        assert any(until in line for line in process.stdout), process.communicate()[1]
        yield process
    finally:
        if process.poll() is None:
            family = children(psutil.Process(process.pid))
            process.kill()
            kill_all(family)


def stop(process: subprocess.Popen[str], signum: int) -> tuple[int, str]:
    """Exit code and errors after one signal. Nothing that the run has started is left."""
    family = children(psutil.Process(process.pid))
    assert family
    process.send_signal(signum)
    _, err = process.communicate(timeout=100)
    assert still_there(family, 30) == []
    weights = {f"hamr-weights-{child.pid}" for child in family}
    assert not [file for file in Path("/dev/shm").glob("hamr-weights-*") if file.name.rpartition("-")[0] in weights]
    return process.returncode, err


def test_a_run_is_stopped_in_each_phase(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    resume = f"continue with: hamr train resume={run}"
    with running(tmp_path, "] start ...", **SETTINGS) as process:
        code, err = stop(process, signal.SIGINT)
    assert (code, err) == (130, f"hamr: stopped by Ctrl-C; {resume}\n")

    with running(tmp_path, "sft step 2/", resume=run) as process:
        code, err = stop(process, signal.SIGINT)
    kept = Checkpoints(run / "checkpoints" / "warm_up").newest()
    assert kept is not None and kept.step >= 2
    assert (code, err) == (130, f"hamr: stopped by Ctrl-C in the warm-up, step {kept.step} of 20 is kept; {resume}\n")

    with running(tmp_path, "rl step 2/", resume=run) as process:
        # The status file is written every few seconds.
        while (seen := LiveStatus.read(run)) is None or seen.phase != "rl":
            time.sleep(0.2)
        assert seen.alive()
        assert len(seen.pools["judge"]["pids"]) == 1
        code, err = stop(process, signal.SIGTERM)
    newest = Checkpoints(run / "checkpoints").newest()
    assert newest is not None and newest.step >= 2
    assert (code, err) == (0, f"hamr: stopped by SIGTERM, step {newest.step} of 1000 is kept; {resume}\n")
    _check_folder(run, newest.step, newest.state["stream"])
    assert parse_command(["status", str(run)]).run() == 0
    assert "preempted" in capsys.readouterr().out


def _check_folder(run: Path, step: int, stream: dict[str, int]) -> None:
    """What the three processes did adds up to one run."""
    # Two prompts a step from epochs of 24: what a dropped step had taken is not counted as used.
    assert 24 * stream["epoch"] + stream["index"] == 2 * step
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["step"] for row in rows if row["stage"] == "sft"] == list(range(1, 21)), "no step of it twice"
    assert [row["stage"] for row in rows if row["stage"].startswith("eval")] == ["eval-base", "eval-sft"]
    assert not (run / "checkpoints" / "warm_up").exists()
    with Ledger(run / "ledger.sqlite", readonly=True) as ledger:
        calls = {(call.pool, call.model) for record in ledger.rows() for call in record.calls}
    assert calls == {("reranker", "compact-encoder"), ("judge", "tiny")}, "the judge is an engine here"
