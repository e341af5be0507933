"""SIGTERM in a process of one's own: what is dropped, what is waited for, what comes back."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from hamr.jobs.preemption import Preemption


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


async def test_what_may_be_dropped_is_cancelled() -> None:
    preemption, ended = Preemption(), []

    async def work() -> int:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("work")
        return 1

    with preemption.watching(), preemption.patiently():
        asyncio.get_running_loop().call_soon(terminate)
        assert await preemption.unless_asked(work()) is None
    assert ended == ["work"]


async def test_what_may_not_is_waited_for() -> None:
    preemption = Preemption()

    async def work() -> int:
        terminate()
        await asyncio.sleep(0.05)
        return 1

    with preemption.watching(), preemption.patiently():
        assert await preemption.unless_asked(work(), may_drop=lambda: False) == 1
    assert preemption.asked.is_set()


async def test_a_failure_is_itself() -> None:
    async def work() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await Preemption().unless_asked(work())


async def test_outside_of_patience_the_task_is_cancelled() -> None:
    preemption = Preemption()

    async def run() -> None:
        with preemption.watching():
            terminate()
            await asyncio.sleep(60)

    task = asyncio.create_task(run())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert preemption.asked.is_set()


async def test_a_second_one_does_not_wait_and_the_former_handler_comes_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    preemption = Preemption()
    with preemption.watching(), preemption.patiently():
        preemption.asked.set()
        with pytest.raises(SystemExit) as ended:
            terminate()
        assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
