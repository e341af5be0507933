"""Ends of processes that are known by their identity in a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hamr.security import processes
from hamr.security.processes import alive, has_ended, identity, kill_session


def test_process_has_ended_after_its_end() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = identity(child.pid)
    assert not has_ended(owner) and not has_ended(identity())
    child.communicate()
    assert has_ended(owner)
    assert has_ended({name: value for name, value in owner.items() if name != "pids"}), "of an earlier version"


def test_session_ends_with_its_process_groups(tmp_path: Path) -> None:
    """`timeout` makes a process group of its own, and its parent has ended."""
    script = "timeout 60 sleep 60 & echo $! > pid; exit 3"
    child = subprocess.Popen(["sh", "-c", script], cwd=tmp_path, start_new_session=True)
    assert child.wait() == 3
    left = int((tmp_path / "pid").read_text())
    assert alive(left)
    kill_session(child.pid)
    assert not alive(left)


def test_process_of_another_container_is_not_said_to_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have the name of this host, and its number is not one of this container's processes."""
    owner = identity() | {"pid": 4_000_000, "started": "1"}
    assert has_ended(owner)
    monkeypatch.setattr(processes, "pid_namespace", lambda: "pid:[1]")
    assert not has_ended(owner)
