"""SIGTERM and Ctrl-C: cancelled work, awaited work, the grace period and restored handlers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from hamr import signals
from hamr.apps.shared.preemption import Preemption, stop_error
from hamr.errors import Interrupted, Preempted

BOTH = pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])


def sender(signum: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), signum)


@BOTH
async def test_droppable_work_is_cancelled_on_a_signal(signum: int) -> None:
    preemption, ended = Preemption(), []

    async def work() -> int:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("work")
        return 1

    with preemption.watching(), preemption.patiently():
        asyncio.get_running_loop().call_soon(sender(signum))
        assert await preemption.unless_asked(work()) is None
    assert ended == ["work"]


@BOTH
async def test_undroppable_work_is_awaited_on_a_signal(signum: int) -> None:
    preemption, notes = Preemption(), []

    async def work() -> int:
        os.kill(os.getpid(), signum)
        await asyncio.sleep(0.05)
        return 1

    with preemption.watching(notes.append), preemption.patiently():
        assert await preemption.unless_asked(work(), may_drop=lambda: False) == 1
    assert preemption.asked.is_set()
    assert notes == ["stopping: a running step has 4 s to finish; a second signal kills the run"]


async def test_wait_for_a_step_ends_after_the_grace_period() -> None:
    preemption, ended = Preemption(grace_s=0.05), []

    async def step() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("step")

    async def run() -> None:
        with preemption.watching(), preemption.patiently():
            asyncio.get_running_loop().call_soon(sender(signal.SIGTERM))
            await preemption.unless_asked(step(), may_drop=lambda: False)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(run())
    assert ended == ["step"]


async def test_grace_period_does_not_cut_off_the_shutdown_after_the_step() -> None:
    preemption, stopped = Preemption(grace_s=0.05), []

    async def run() -> None:
        with preemption.watching():
            with preemption.patiently():
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            stopped.append("actors")

    await asyncio.create_task(run())
    assert stopped == ["actors"]


async def test_work_does_not_start_after_a_stop_request() -> None:
    preemption, begun = Preemption(), []

    async def work() -> int:
        begun.append(1)
        return 1

    preemption.asked.set()
    assert await preemption.unless_asked(work(), may_drop=lambda: False) is None
    assert not begun


async def test_failure_of_the_work_is_raised_unchanged() -> None:
    async def work() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await Preemption().unless_asked(work())


@BOTH
async def test_task_is_cancelled_outside_a_patient_section(signum: int) -> None:
    preemption = Preemption()

    async def run() -> None:
        with preemption.watching():
            os.kill(os.getpid(), signum)
            await asyncio.sleep(60)

    task = asyncio.create_task(run())
    with pytest.raises(asyncio.CancelledError):
        await task
    assert preemption.asked.is_set()


@BOTH
async def test_second_signal_exits_and_previous_handlers_are_restored(
    signum: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exit_now(reason: str) -> None:
        raise SystemExit(reason)

    monkeypatch.setattr(signals, "exit_now", exit_now)
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    preemption = Preemption()
    with preemption.watching(), preemption.patiently():
        os.kill(os.getpid(), signum)
        await asyncio.sleep(0)
        with pytest.raises(SystemExit, match="by a second signal"):
            os.kill(os.getpid(), signum)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_ctrl_c_and_sigterm_end_a_run_with_their_own_exit_codes() -> None:
    terminated, interrupted = stop_error("; resume", signal.SIGTERM), stop_error("; resume", signal.SIGINT)
    assert (type(terminated), str(terminated), terminated.exit_code) == (Preempted, "stopped by SIGTERM; resume", 0)
    assert (type(interrupted), str(interrupted)) == (Interrupted, "stopped by Ctrl-C; resume")
    assert interrupted.exit_code == 130
