"""Values that a child process passes to its parent."""

from __future__ import annotations

import os
import signal

import pytest

from hamr.apps.shared.child_process import child_process, send_to_parent
from hamr.errors import HamrError


def count(n: int) -> int:
    for i in range(n):
        send_to_parent(i)
    return n


def count_and_die(n: int) -> None:
    count(n)
    os.kill(os.getpid(), signal.SIGKILL)


def test_parent_receives_values_in_order_before_the_end() -> None:
    received: list[int] = []
    with child_process("killed", received.append) as call:
        assert call(count, 3) == 3
        assert call(count, 2) == 2
    assert received == [0, 1, 2, 0, 1]


def test_values_without_a_listener_are_dropped() -> None:
    with child_process("killed") as call:
        assert call(count, 3) == 3


def test_killed_process_leaves_no_listener() -> None:
    received: list[int] = []
    with pytest.raises(HamrError, match="lower it"), child_process("lower it", received.append) as call:
        call(count_and_die, 2)
    assert received == [0, 1]
