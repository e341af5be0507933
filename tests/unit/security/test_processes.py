"""Ends of processes that are known by their identity in a file."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hamr.security import processes
from hamr.security.processes import has_ended, identity


def test_process_has_ended_after_its_end() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = identity(child.pid)
    assert not has_ended(owner) and not has_ended(identity())
    child.communicate()
    assert has_ended(owner)
    assert has_ended({name: value for name, value in owner.items() if name != "pids"}), "of an earlier version"


def test_process_of_another_container_is_not_said_to_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have the name of this host, and its number is not one of this container's processes."""
    owner = identity() | {"pid": 4_000_000, "started": "1"}
    assert has_ended(owner)
    monkeypatch.setattr(processes, "pid_namespace", lambda: "pid:[1]")
    assert not has_ended(owner)
