"""Live control of a run with scripted pools: its status file and its control requests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hamr.apps.shared.commands import parse_command
from hamr.apps.shared.live_control import LiveControl
from hamr.errors import BadInput, HamrError, RunFolderError, ScorerUnavailable
from hamr.telemetry.control_requests import ControlRequests
from hamr.telemetry.glossary import lookup
from hamr.telemetry.live import LiveStatus


class Scaler:
    """Two pools; `judge` cannot be had in a larger size than 4, and never in size 3."""

    def __init__(self) -> None:
        self.sizes = {"judge": 1, "reranker": 2}
        self.looks = 0

    async def status(self) -> Mapping[str, Mapping[str, Any]]:
        self.looks += 1
        if self.looks == 1:
            raise RuntimeError("the controller is busy")
        return {name: {"replicas": n, "running": n, "pids": []} for name, n in self.sizes.items()}

    async def resize(self, wanted: Mapping[str, int]) -> Mapping[str, tuple[int, int]]:
        if wanted.get("judge", 0) > 4:
            raise BadInput("scale judge", wanted["judge"], "too many; ask for 4")
        if wanted.get("judge") == 3:
            raise ScorerUnavailable("pool 'judge': no such model; the pools are unchanged")
        before = dict(self.sizes)
        self.sizes.update(wanted)
        return {name: (before[name], n) for name, n in wanted.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("{}")
    return tmp_path


@pytest.mark.slow
async def test_live_control_writes_status_and_resizes_on_request(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noted: dict[str, float] = {}
    control = LiveControl(folder, "mine", note=noted.update, phase=lambda: "rl", period_s=0.01)

    async def command(*args: str) -> int:
        return await asyncio.to_thread(parse_command(["scale", str(folder), *args]).run)

    async with control.serving():
        early = asyncio.create_task(command("judge=2", "reranker=2"))
        await asyncio.sleep(0.1)
        seen = LiveStatus.read(folder)
        assert seen is not None and seen.state == "starting", "its pools are not there yet, and the request waits"
        control.scaler = Scaler()
        assert await early == 0
        out = capsys.readouterr().out
        assert "judge: 1 -> 2 replicas\nreranker: 2 replicas, unchanged\n" in out
        with pytest.raises(BadInput, match="scale judge: 9: too many; ask for 4"):
            await command("judge=9")
        with pytest.raises(HamrError, match="no such model; the pools are unchanged"):
            await command("judge=3")
        async with asyncio.timeout(20):
            while noted.get("pool/judge/replicas") != 2.0:
                await asyncio.sleep(0.01)
        seen = LiveStatus.read(folder)
        assert seen is not None and seen.alive()
        assert (seen.run, seen.phase, seen.pools["judge"]["running"]) == ("mine", "rl", 2)
    assert noted["pool/judge/scaled"] == 1.0
    assert all(lookup(name) for name in noted)
    control.publish("finished")
    with pytest.raises(BadInput, match=r"is not running \(finished\)"):
        await command("judge=2")


@pytest.mark.parametrize(
    ("wanted", "answer"),
    [
        ({"judge": 2}, {"failed": "TimeoutError: the router does not answer"}),
        ({}, {"bad_input": ["request", "{'scale': {}}", "unknown request; the run may use another version of hamr"]}),
    ],
)
async def test_every_request_gets_an_answer(folder: Path, wanted: dict[str, int], answer: dict[str, Any]) -> None:
    class Busy(Scaler):
        async def resize(self, wanted: Mapping[str, int]) -> Mapping[str, tuple[int, int]]:
            raise TimeoutError("the router does not answer")

    control = LiveControl(folder, "mine", note=lambda figures: None, phase=lambda: "rl", period_s=0.01)
    control.scaler = Busy()
    async with control.serving():
        asked = asyncio.to_thread(ControlRequests(folder).ask, {"scale": wanted}, timeout_s=1.0)
        assert await asked == answer


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["judge=4"], "RUN: None: missing; write hamr scale RUN POOL=N"),
        (["{run}"], "name a pool and its number"),
        (["{run}", "judge=many"], "judge: 'many': must be a whole number"),
        (["{run}", "judge=1.5"], "must be a whole number"),
    ],
)
def test_bad_input_is_reported_in_one_line(folder: Path, args: list[str], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse_command(["scale", *(arg.format(run=folder) for arg in args)]).run()


def test_folder_without_a_run_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="not a run folder"):
        parse_command(["scale", str(tmp_path / "none"), "judge=4"]).run()


def test_full_disk_is_reported_once_and_does_not_hide_the_run_error(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    control = LiveControl(folder / "gone", "mine", note=lambda figures: None, phase=lambda: "rl")
    for _ in range(3):
        control.publish("failed", "no space left")
    assert [record.exc_info for record in caplog.records] == [None]
    (folder / "gone").mkdir()
    control.publish("failed", "no space left")
    seen = LiveStatus.read(folder / "gone")
    assert seen is not None and seen.detail == "no space left"
