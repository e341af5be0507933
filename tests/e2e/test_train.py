"""The whole job on real engines with the tiny model: a run, its folder, its ledger, a kill and a resume."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hamr.jobs.score import replay_run
from hamr.observability.checkpoints import Checkpoints
from hamr.observability.ledger import Ledger
from hamr.observability.metrics import read_metrics
from hamr.types import Failure

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "hamr", *args]


def run(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*args), cwd=cwd, capture_output=True, text=True, timeout=400)


@contextlib.contextmanager
def dashboard_port_in_use() -> Iterator[None]:
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # then somebody else has it, which is as good
            held.enter_context(socket.create_server(("127.0.0.1", 8265)))
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished smoke run, W&B offline, in a folder that is not the checkout, the dashboard's port in use."""
    cwd = tmp_path_factory.mktemp("smoke")
    with dashboard_port_in_use():
        done = run(
            "train", "experiment=smoke", "logging=offline", "experiment.run_dir=out", "experiment.sft.steps=1", cwd=cwd
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return cwd / "out"


def test_a_run_leaves_a_whole_folder(finished: Path) -> None:
    for name in ("config.yaml", "metrics.jsonl", "ledger.sqlite", "summary.json", "report.html", "samples.jsonl"):
        assert (finished / name).stat().st_size > 0, name
    assert (finished / "checkpoints" / "step_2" / "policy" / "model.safetensors").is_file()
    assert list((finished / "plots").glob("*.png"))
    assert list((finished / "wandb").rglob("*.wandb"))
    summary = json.loads((finished / "summary.json").read_text())
    assert set(summary["stages"]) == {"base", "sft", "rl"}
    assert set(summary["scorers"]) == {"reranker", "judge"}


def test_every_step_is_measured(finished: Path) -> None:
    rows = [row for row in read_metrics(finished / "metrics.jsonl") if row["stage"] == "rl"]
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["rollout/logprob_diff/max"] < 1e-3, "trainer and engine disagree about the same tokens"
        assert row["timing/step/total"] >= row["timing/step/train"] >= 0


def test_every_response_has_one_record_and_replays_to_its_number(finished: Path) -> None:
    with Ledger(finished / "ledger.sqlite", readonly=True) as ledger:
        records = list(ledger.rows())
    assert len({record.key for record in records}) == len(records) > 0
    assert not any(isinstance(record.total, Failure) for record in records)
    assert replay_run(finished) == 0


def test_a_killed_run_goes_on_where_it_stood(tmp_path: Path) -> None:
    """kill -9 after the first checkpoint; the resumed run ends with the prompts and steps of an unbroken one."""
    args = (
        "train",
        "experiment=smoke",
        "experiment.steps=4",
        "experiment.checkpoint.every=1",
        "algorithm.dynamic_sampling.enabled=false",
    )
    broken = tmp_path / "broken"
    said = tmp_path / "said.txt"
    quietly = {"cwd": tmp_path, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
    with said.open("w") as out:
        told = quietly | {"stdout": out, "stderr": out}
        process = subprocess.Popen(command(*args, "experiment.run_dir=broken"), **told)
    whole = subprocess.Popen(command(*args, "experiment.run_dir=whole"), **quietly)  # beside it: both mostly wait
    deadline = time.monotonic() + 300
    while not (broken / "checkpoints" / "step_2").is_dir():
        assert process.poll() is None and time.monotonic() < deadline, f"ended before it was killed: {said.read_text()}"
        time.sleep(0.05)
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    for child in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(family, timeout=30)
    resumed = run("train", f"resume={broken}", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert whole.wait(timeout=300) == 0
    newest = Checkpoints(broken / "checkpoints").newest()
    assert newest is not None and newest.step == 4

    def draws(folder: Path) -> dict[int, set[tuple[str, int]]]:
        with Ledger(folder / "ledger.sqlite", readonly=True) as ledger:
            keys = [r.key for r in ledger.rows() if "/eval" not in r.key.run]
        return {step: {(k.prompt, k.sample) for k in keys if k.step == step} for step in range(1, 5)}

    assert draws(broken) == draws(tmp_path / "whole")
    assert newest.state["stream"] == Checkpoints(tmp_path / "whole" / "checkpoints").newest().state["stream"]
    steps = [row["step"] for row in read_metrics(broken / "metrics.jsonl") if row["stage"] == "rl"]
    assert sorted(set(steps)) == [1, 2, 3, 4]
