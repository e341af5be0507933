"""A pipeline of real commands with the tiny model: killed within a stage, resumed, and reported once at the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from hamr.apps.pipeline.log import PipelineLog
from hamr.apps.score.run import replay_run
from hamr.security.processes import alive
from hamr.telemetry.ledger import Ledger
from hamr.telemetry.metrics import read_metrics
from hamr.types import Failure
from tests.e2e.runs import hamr

pytestmark = [pytest.mark.e2e, pytest.mark.deep, pytest.mark.timeout(800)]

PIPELINE = """\
name: tiny
keep: all
stages:
  - name: talk
    job: data sage
    args: [data.sage.train=24, data.sage.validation=8, data.sage.test=8, data.sage.procedure=false, thoughts=hybrid]
  - name: sft
    job: sft
    args:
      - experiment=smoke
      - sft.steps=3
      - sft.batch_size=4
      - "sft.sets=[{path: @talk.items, validation: @talk.held_out_items}]"
  - name: rl
    job: train
    args:
      - experiment=smoke
      - model.path=@sft.policy
      - model.response_format=hybrid
      - data.type=jsonl
      - data.train=@talk.train
      - data.validation=@talk.validation
      - data.test=@talk.test
      - experiment.evaluation.stop_at_answer=true
"""


def test_killed_pipeline_resumes(tmp_path: Path, joined: tuple[str, ...]) -> None:
    """The SFT stage starts its own Ray; the RL stage joins another one."""
    cluster = "".join(f"      - {setting}\n" for setting in joined)
    (tmp_path / "tiny.yaml").write_text(PIPELINE + cluster)
    begin = hamr("train", "pipeline=./tiny.yaml", "experiment.run_dir=run")
    process = subprocess.Popen(begin, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run = tmp_path / "run"
    try:
        until = time.monotonic() + 200
        while not (run / "2-sft" / "config.yaml").is_file():
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.2)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30)
    log = PipelineLog(run)
    assert log.finished("talk") and log.of("sft").state == "begun"
    _until_given_back(run / "2-sft")
    go_on = hamr("train", f"resume={run}")
    with dashboard_port_in_use():
        resumed = subprocess.run(go_on, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "stage 1 of 3, talk: finished earlier" in resumed.stdout
    assert log.of("talk").attempts == 1 and log.of("sft").attempts == 2 and log.finished("rl")
    assert list((run / "3-rl" / "checkpoints").glob("*/policy/model.safetensors"))
    html = (run / "report.html").read_text()
    assert "3 of 3 stages finished." in html and "3-rl/report.html" in html
    _rl_began_with_the_weights_of_sft(run)
    _all_engines_did_their_part(run / "3-rl")


@contextlib.contextmanager
def dashboard_port_in_use() -> Iterator[None]:
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # then another process has it, which is as good
            held.enter_context(socket.create_server(("127.0.0.1", 8265)))
        yield


def _rl_began_with_the_weights_of_sft(run: Path) -> None:
    trained = json.loads((run / "2-sft" / "summary.json").read_text())["sft"]["model"]
    start = run / "3-rl" / "checkpoints" / "step_0" / "policy"
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (start, run / "2-sft" / trained))
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in ours)


def _all_engines_did_their_part(rl: Path) -> None:
    """The policy's took both steps, no response went without a reward, and both scorers were asked at the end."""
    rows = [row for row in read_metrics(rl / "metrics.jsonl") if row["stage"] == "rl"]
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["rollout/logprob_diff/max"] < 1e-3 for row in rows)
    with Ledger(rl / "ledger.sqlite", readonly=True) as ledger:
        records = list(ledger.rows())
    assert records and not any(isinstance(record.total, Failure) for record in records)
    assert replay_run(rl) == 0
    assert set(json.loads((rl / "summary.json").read_text())["scorers"]) == {"reranker", "judge"}


def _until_given_back(folder: Path) -> None:
    """The kernel tells the stage of a killed pipeline to end, which takes it a moment."""
    until = time.monotonic() + 60
    while (owner := (folder / "run.lock").read_text()) and alive(json.loads(owner)["pid"]):
        assert time.monotonic() < until, "the stage goes on without its pipeline"
        time.sleep(0.3)
