"""Values that a child process passes to its parent."""

from __future__ import annotations

import os
import signal

import pytest

from hamr.apps.shared.child_process import child_process, tell_parent
from hamr.errors import HamrError


def count(n: int) -> int:
    for i in range(n):
        tell_parent(i)
    return n


def count_and_die(n: int) -> None:
    count(n)
    os.kill(os.getpid(), signal.SIGKILL)


def test_parent_is_told_in_order_before_the_end() -> None:
    told: list[int] = []
    with child_process("killed", told.append) as call:
        assert call(count, 3) == 3
        assert call(count, 2) == 2
    assert told == [0, 1, 2, 0, 1]


def test_values_without_a_listener_are_dropped() -> None:
    with child_process("killed") as call:
        assert call(count, 3) == 3


def test_killed_process_leaves_no_listener() -> None:
    told: list[int] = []
    with pytest.raises(HamrError, match="lower it"), child_process("lower it", told.append) as call:
        call(count_and_die, 2)
    assert told == [0, 1]
