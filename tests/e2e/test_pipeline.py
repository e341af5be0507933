"""The shipped small pipelines with few samples and steps: killed within a stage, resumed, and reported once."""

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

from hamr.apps.pipeline.log import PLAN, PipelineLog
from hamr.apps.score.run import replay_run
from hamr.config.pipeline import read_pipeline
from hamr.config.resources import resource
from hamr.security.processes import alive
from hamr.telemetry.ledger import Ledger
from hamr.telemetry.metrics import read_metrics
from hamr.types import Failure
from tests.e2e.runs import hamr

pytestmark = [pytest.mark.e2e, pytest.mark.deep, pytest.mark.timeout(800)]

FEW = (
    "stages.dialogues.data.sage.train=48", "stages.dialogues.data.sage.validation=12",
    "stages.dialogues.data.sage.test=12", "sft.steps=60", "experiment.steps=2", "experiment.prompts_per_step=4",
    "rollout.samples_per_prompt=4", "data.max_eval=8", "pools.reranker.finetune.examples=200",
    "pools.judge.finetune.examples=100", "scorers.accept_chance=true",
)  # fmt: skip
PIPELINES = {
    "hrm_small": ("sft", "rl", ("stages.calibrate.most=40",)),
    "olamind_small": (
        "zero_think",
        "stage_2",
        (
            "stages.items.core=2", "stages.items.risk=1", "stages.items.hallucination=3", "stages.responses.n=1",
            "stages.sampled.min_mean=0",
        ),
    ),
}  # fmt: skip
"""The stage that is killed, the last one with RL, and further arguments."""


@pytest.mark.parametrize("name", PIPELINES)
def test_killed_pipeline_resumes(name: str, tmp_path: Path, joined: tuple[str, ...]) -> None:
    killed, last, more = PIPELINES[name]
    run = tmp_path / "run"
    given = (f"pipeline={name}", "experiment.run_dir=run", *FEW, *more, *joined)
    process = subprocess.Popen(
        hamr("train", *given), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    log = PipelineLog(run)
    try:
        until = time.monotonic() + 200
        while not (run / stage_folder(run, killed) / "config.yaml").is_file():
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.2)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(30)
    assert log.is_finished("dialogues") and log.of(killed).state == "begun"
    _until_given_back(run / stage_folder(run, killed))
    go_on = hamr("train", f"resume={run}")
    with dashboard_port_in_use():
        resumed = subprocess.run(go_on, cwd=tmp_path, capture_output=True, text=True, timeout=700)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    stages = read_pipeline(resource("conf", f"pipeline/{name}.yaml")).pipeline.stages
    assert f"stage 1 of {len(stages)}, dialogues: finished earlier" in resumed.stdout
    assert log.of("dialogues").attempts == 1 and log.of(killed).attempts == 2
    assert all(log.is_finished(stage.name) for stage in stages)
    html = (run / "report.html").read_text()
    assert f"{len(stages)} of {len(stages)} stages finished." in html
    _all_engines_did_their_part(run / stage_folder(run, last))


def stage_folder(run: Path, stage: str) -> str:
    """Return the name of a stage's folder, once the pipeline has started."""
    plan = run / PLAN
    stages = json.loads(plan.read_text())["stages"] if plan.is_file() else []
    return next((row["folder"] for row in stages if row["name"] == stage), stage)


@contextlib.contextmanager
def dashboard_port_in_use() -> Iterator[None]:
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # then another process has it, which is as good
            held.enter_context(socket.create_server(("127.0.0.1", 8265)))
        yield


def _all_engines_did_their_part(rl: Path) -> None:
    """The policy's took both steps, no response went without a reward, and all scorers were asked."""
    rows = [row for row in read_metrics(rl / "metrics.jsonl") if row["stage"] == "rl"]
    assert [row["step"] for row in rows] == [1, 2]
    gaps = [row["rollout/logprob_diff/max"] for row in rows]
    assert max(gaps) < 1e-3, gaps
    with Ledger(rl / "ledger.sqlite", readonly=True) as ledger:
        records = list(ledger.rows())
    assert records and not any(isinstance(record.total, Failure) for record in records)
    assert replay_run(rl) == 0
    assert {"reranker", "judge"} <= set(json.loads((rl / "summary.json").read_text())["scorers"])


def _until_given_back(folder: Path) -> None:
    """The kernel tells the stage of a killed pipeline to end, which takes it a moment."""
    until = time.monotonic() + 60
    while (owner := (folder / "run.lock").read_text()) and alive(json.loads(owner)["pid"]):
        assert time.monotonic() < until, "the stage goes on without its pipeline"
        time.sleep(0.3)
