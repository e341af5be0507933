"""`hamr stop` of runs on this machine and on others."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hamr.apps.pipeline.log import LOCK, PipelineLog
from hamr.apps.pipeline.plan import PipelinePlan, PipelineStage
from hamr.apps.shared.commands import parse_command
from hamr.apps.shared.live_control import LiveControl
from hamr.apps.shared.start_status import StartStatus
from hamr.apps.status import stop as module
from hamr.errors import BadInput, HamrError
from hamr.security.processes import identity
from hamr.telemetry.live import LiveStatus
from hamr.telemetry.run_folder import RunFolder

CONFIG = "experiment: {checkpoint: {grace_s: 0.5}}"
RUN = """
import signal, sys, time
from pathlib import Path
from hamr.telemetry.live import LiveStatus
from hamr.telemetry.run_folder import RunFolder

folder = RunFolder.create(sys.argv[1], "experiment: {}")

def end(signum, frame):
    now = time.time()
    status = LiveStatus(run="r", state="preempted", phase="rl", started=now, time=now, detail="step 2 of 9 is kept")
    status.write(folder.path)
    folder.close()
    sys.exit(0)

signal.signal(signal.SIGTERM, end)
print("runs", flush=True)
time.sleep(600)
"""


def command(folder: Path) -> int:
    return parse_command(["stop", str(folder)]).run()


def test_local_run_gets_the_signal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No status is needed, so a run can be stopped while it starts."""
    run = subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path / "r")], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None and run.stdout.readline() == "runs\n"
    assert command(tmp_path / "r") == 0
    assert run.wait(20) == 0
    assert f"(process {run.pid} on " in (out := capsys.readouterr().out)
    assert "preempted: step 2 of 9 is kept\n" in out
    with pytest.raises(BadInput, match=r"is not running \(preempted\)"):
        command(tmp_path / "r")


def elsewhere(folder: RunFolder, **changes: object) -> None:
    """Make the run's owner a process of another machine."""
    (folder.path / "run.lock").write_text(json.dumps(identity() | (changes or {"host": "elsewhere"})))


@pytest.mark.parametrize("owner", [{"host": "elsewhere"}, {"pids": "pid:[1]"}], ids=["machine", "container"])
async def test_run_elsewhere_is_asked_through_its_folder(
    tmp_path: Path, owner: dict[str, object], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run answers before its pools are there. A process with its pid here gets no signal."""
    sent: list[int] = []
    monkeypatch.setattr(module.os, "kill", lambda pid, signum: sent.append(pid))
    folder = RunFolder.create(tmp_path / "r", CONFIG)
    elsewhere(folder, **owner)
    stopped = asyncio.Event()
    control = LiveControl(
        folder.path, folder.id, note=lambda row: None, phase=lambda: "start", stop=stopped.set, period_s=0.01
    )
    async with control.serving(), asyncio.timeout(30):
        while LiveStatus.read(folder.path) is None:
            await asyncio.sleep(0.01)
        asked = asyncio.create_task(asyncio.to_thread(command, folder.path))
        await stopped.wait()
    control.publish("preempted", "stopped by SIGTERM; continue with: hamr train resume=r")
    (folder.path / "run.lock").write_text("")
    assert await asked == 0 and sent == []
    assert "preempted: stopped by SIGTERM; continue with: hamr train resume=r\n" in capsys.readouterr().out


def test_run_that_has_ended_is_refused(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "r", CONFIG).close()
    with pytest.raises(BadInput, match="is not running, so there is nothing to stop"):
        command(tmp_path / "r")


def test_run_elsewhere_without_a_heartbeat_is_refused(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "r", CONFIG)
    elsewhere(folder)
    LiveStatus(run="r", state="running", phase="rl", started=0.0, time=0.0, host="elsewhere").write(folder.path)
    with pytest.raises(BadInput, match="is not running"):
        command(folder.path)


def test_run_that_does_not_end_in_time_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "END_S", 0.0)
    sent = []
    monkeypatch.setattr(module.os, "kill", lambda pid, signum: sent.append(signum))
    with (
        RunFolder.create(tmp_path / "r", CONFIG) as folder,
        pytest.raises(HamrError, match=r"still runs after 0\.5 s"),
    ):
        command(folder.path)
    assert sent == [signal.SIGTERM]


PIPELINE = """
import sys
from pathlib import Path
from hamr.apps.pipeline.plan import PipelinePlan
from hamr.apps.pipeline.run import work_off
from hamr.errors import Preempted
import time

def stage(args):
    print("runs", flush=True)
    time.sleep(600)

try:
    work_off(PipelinePlan.load(Path(sys.argv[1])), stage)
except Preempted:
    sys.exit(0)
"""


def test_pipeline_gets_the_signal_and_can_be_continued(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "p"
    stage = PipelineStage(number=1, name="talk", job="data sage", args=(), folder=folder / "1-talk")
    PipelinePlan(name="p", folder=folder, keep="all", inputs={}, stages=(stage,)).create()
    run = subprocess.Popen([sys.executable, "-c", PIPELINE, str(folder)], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None and next(line for line in run.stdout if line == "runs\n")
    assert command(folder) == 0
    assert run.wait(20) == 0
    assert f"continue with: hamr train resume={folder}\n" in capsys.readouterr().out
    assert PipelineLog(folder).of("talk").state == "stopped"
    with pytest.raises(BadInput, match="is a pipeline that is not running"):
        command(folder)


def test_pipeline_that_ends_just_now_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PipelinePlan(name="p", folder=tmp_path / "p", keep="all", inputs={}, stages=()).create()
    lock = tmp_path / "p" / LOCK
    lock.write_text(json.dumps(identity()))

    def kill(pid: int, signum: int) -> None:
        lock.write_text("")
        raise ProcessLookupError

    monkeypatch.setattr(module.os, "kill", kill)
    assert command(tmp_path / "p") == 0


def test_pipeline_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(pid: int, signum: int) -> None:
        raise PermissionError

    PipelinePlan(name="p", folder=tmp_path / "p", keep="all", inputs={}, stages=()).create()
    (tmp_path / "p" / LOCK).write_text(json.dumps(identity()))
    monkeypatch.setattr(module.os, "kill", kill)
    with pytest.raises(BadInput, match="another user's process"):
        command(tmp_path / "p")


@pytest.mark.parametrize("owner", [{"host": "elsewhere"}, {"pids": "pid:[1]"}], ids=["machine", "container"])
def test_pipeline_elsewhere_is_stopped_by_its_current_run(
    tmp_path: Path, owner: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.os, "kill", lambda pid, signum: pytest.fail("a process of this container was signalled"))
    folder = tmp_path / "p"
    PipelinePlan(name="p", folder=folder, keep="all", inputs={}, stages=()).create()
    (folder / LOCK).write_text(json.dumps(identity() | owner))
    with pytest.raises(BadInput, match=r"runs on \S+, in a stage that takes no request"):
        command(folder)


def test_starting_run_of_another_container_gets_no_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.1)
    monkeypatch.setattr(module.os, "kill", lambda pid, signum: pytest.fail("a process of this container was signalled"))
    now = time.time()
    LiveStatus(run="r", state="starting", phase="Ray", started=now, time=now, pids="pid:[1]").write(tmp_path)
    with pytest.raises(HamrError, match=r"did not answer within 0\.1 s"):
        command(tmp_path)


def test_starting_run_without_a_lock_gets_the_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starting = StartStatus(tmp_path / "r", "r", lambda: "scorers")
    sent = []

    def kill(pid: int, signum: int) -> None:
        sent.append((pid, signum))
        with pytest.raises(SystemExit), starting:
            raise SystemExit(143)

    monkeypatch.setattr(module.os, "kill", kill)
    now = time.time()
    (tmp_path / "r").mkdir()
    LiveStatus(run="r", state="starting", phase="scorers", started=now, time=now).write(tmp_path / "r")
    assert command(tmp_path / "r") == 0
    assert sent == [(os.getpid(), signal.SIGTERM)]
