"""`hamr status` from a run folder alone, and the definition of a live run."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import yaml

from hamr.apps.shared.commands import parse_command
from hamr.apps.status.overview import overview_lines
from hamr.errors import BadInput, RunFolderError
from hamr.telemetry.live import STALE_S, LiveStatus, find_run

POOLS = {
    "judge": {
        "replicas": 3, "running": 2, "leaving": 1, "pids": [1, 2], "status": "RUNNING", "message": "",
        "breaker": "half_open", "waiting": 7, "p50_s": 0.25, "p99_s": 1.5, "asked": 120, "retry_in_s": 0.0,
    }
}  # fmt: skip


def folder(tmp_path: Path, *rows: dict, steps: int = 10) -> Path:
    path = tmp_path / "runs" / "mine"
    path.mkdir(parents=True)
    config = {
        "experiment": {"steps": steps, "sft": {"steps": 4}},
        "rollout": {"samples_per_prompt": 8},
        "pools": {"judge": {"replicas": 3}, "reranker": {"replicas": 2}},
    }
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def step(n: int, **figures: float) -> dict:
    return {"step": n, "stage": "rl", "time": 1000.0 + n, "timing/step/total": 20.0, "rollout/prompts": 5, **figures}


def said(state: str = "running", *, at: float, **changes: object) -> LiveStatus:
    return LiveStatus(run="mine", state=state, phase="rl", started=0.0, time=at, pools=POOLS, **changes)  # type: ignore[arg-type]


def test_active_run_shows_state_and_progress(tmp_path: Path) -> None:
    path = folder(tmp_path, step(1), step(2, **{"reward/total/mean": 0.5, "router/escalated_frac": 0.25}))
    said(at=5000.0).write(path)
    text = "\n".join(overview_lines(path, now=5001.0))
    assert "run mine: running, rl" in text
    assert "rl step 2 of 10, reward 0.500, escalated 25%" in text
    assert "20.0 s a step, 2.00 samples/s, about 2 min 40 s left" in text, "40 responses in 20 s; 8 steps are left"
    [judge] = [line.split() for line in text.splitlines() if line.strip().startswith("judge")]
    assert judge == ["judge", "2", "of", "3", "7", "0.25", "s", "1.50", "s", "120", "half", "open", "1", "leaving"]
    assert "reranker  (2)" in text and "not started" in text


def test_run_without_heartbeat_is_shown_as_gone(tmp_path: Path) -> None:
    path = folder(tmp_path, step(2, **{"reward/total/mean": 0.5}))
    said(at=5000.0).write(path)
    text = "\n".join(overview_lines(path, now=5000.0 + 600))
    assert "gone: no heartbeat for 10 min 00 s" in text
    assert "rl step 2 of 10, reward 0.500" in text
    assert "left" not in text.replace("leaving", ""), "nothing is promised for a run that is gone"


@pytest.mark.parametrize(("state", "detail"), [("finished", ""), ("preempted", "after step 2"), ("failed", "no room")])
def test_ended_run_shows_its_final_state(tmp_path: Path, state: str, detail: str) -> None:
    path = folder(tmp_path, step(2))
    said(state, at=5000.0, detail=detail).write(path)
    [first, *_] = overview_lines(path, now=5060.0)
    assert first == f"run mine: {state} 1 min 00 s ago" + (f": {detail}" if detail else "")


def test_run_without_status_file_is_shown(tmp_path: Path) -> None:
    [first, *rest] = overview_lines(folder(tmp_path), now=0.0)
    assert first == "run mine: no status yet"
    assert any("judge" in line for line in rest)


def test_run_is_alive_with_recent_heartbeat_and_existing_process() -> None:
    now = time.time()
    assert said(at=now).alive()
    assert not said(at=now - STALE_S - 1).alive()
    assert not said("finished", at=now).alive()
    assert not said(at=now, pid=2**22 + 1).alive(), "no such process on this machine"
    assert said(at=now, pid=2**22 + 1, host="elsewhere").alive(), "which nobody here can know"
    assert said(at=now, pid=2**22 + 1, pids="pid:[1]").alive(), "a process of another container"


@pytest.mark.parametrize(("mix", "says"), [({"sets": [{"path": "a"}], "steps": 9}, "sft step 1 of 9"), ({}, "1 of 4")])
def test_progress_of_fine_tuning_has_its_own_number_of_steps(tmp_path: Path, mix: dict[str, object], says: str) -> None:
    path = folder(tmp_path, step(1) | {"stage": "sft"})
    config = yaml.safe_load((path / "config.yaml").read_text())
    (path / "config.yaml").write_text(yaml.safe_dump(config | {"sft": mix}))
    assert says in "\n".join(overview_lines(path))


def test_damaged_sections_do_not_hide_the_state(tmp_path: Path) -> None:
    path = folder(tmp_path, step(1))
    (path / "config.yaml").write_text("experiment:\npools: [reranker]\nrollout: 7\nsft:\n")
    said("failed", at=9.0, detail="disk full").write(path)
    assert "failed" in overview_lines(path, now=10.0)[0] and "disk full" in overview_lines(path, now=10.0)[0]


def test_truncated_or_missing_status_is_none(tmp_path: Path) -> None:
    assert LiveStatus.read(tmp_path) is None
    (tmp_path / "status.json").write_text('{"run": "x"')
    assert LiveStatus.read(tmp_path) is None
    (tmp_path / "status.json").write_text(json.dumps(vars(said(at=1.0)) | {"time": "noon"}))
    assert LiveStatus.read(tmp_path) is None
    said(at=1.0).write(tmp_path)
    assert LiveStatus.read(tmp_path) == said(at=1.0)
    assert os.listdir(tmp_path) == ["status.json"]


def test_a_run_is_found_by_path_or_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert find_run("mine") == find_run("runs/mine") == find_run(str(path)) == path
    with pytest.raises(RunFolderError, match="the closest match in runs/ is mine"):
        find_run("mien")


def test_command_requires_a_run_and_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder(tmp_path, step(1))
    said("finished", at=time.time()).write(path)
    assert parse_command(["status", str(path), "--watch"]).run() == 0, "a run that is over is shown once"
    assert "finished" in capsys.readouterr().out
    with pytest.raises(BadInput, match="missing; write hamr status RUN"):
        parse_command(["status"])
