"""verifiers 0.4: the documented harness, with the package's own environment and chat loop. `make test-trainers`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("verifiers")

from hamr.config.custom import HarnessConfig
from hamr.config.use import ServeConfig
from hamr.rollout.harness import HarnessEpisode
from tests.docs_pages import DOCS, save_files
from tests.unit.rollout.test_endpoint import hold

TASKSET = """\
import verifiers.v1 as vf

__all__ = ["Sums"]


class Sum(vf.TaskData):
    answer: str


class SumTask(vf.Task[Sum]):
    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        return 0.75 * (self.data.answer in trace.last_reply)


class Sums(vf.Taskset[SumTask]):
    def load(self):
        # The scripted engine answers "0.0".
        return [SumTask(Sum(prompt=f"What is {i} - {i}?", answer="0.0")) for i in range(3)]
"""


async def test_documented_harness_runs_an_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_files(DOCS / "how-to" / "harness.md", tmp_path)
    (tmp_path / "sums.py").write_text(TASKSET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = HarnessEpisode(HarnessConfig(path="python verifiers_agent.py sums"), ServeConfig(), scored=False)
    _, group = await hold(run, deadline_s=280)
    [end] = group.records
    assert end.episode is not None and (end.episode.outcome, end.episode.reward) == ("ended", 0.75), end.total
    assert end.observation.startswith("What is ") and end.response == "0.0"
