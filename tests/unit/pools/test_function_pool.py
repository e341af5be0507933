"""Worker processes of a reward function: deadlines, crashes and concurrency. Real processes, no Ray."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hamr.config.custom import CustomRewardConfig
from hamr.config.rewards import ConsistencyConfig, RewardsConfig
from hamr.errors import ConfigError
from hamr.pools import function_pool
from hamr.pools.function_pool import FunctionPool, FunctionProcess, check_functions
from hamr.rewards.custom import AgentSource, RewardSource
from hamr.types import FunctionFailed, FunctionTimeout, Question, RequestedCall, Scored, ServiceSample

SAMPLE = ServiceSample(id="s", ticket={"fee": 40}, policy="", tools=(), history=(), references=())
FUNCTIONS = """
import asyncio, os, subprocess, time

def act(sample, response):
    if response == "terminate":
        child = subprocess.Popen(["sleep", "1000"])
        child.terminate()
        return child.wait(timeout=5)
    if response == "sleep":
        child = subprocess.Popen(["sleep", "1000"])
        open("child", "w").write(str(child.pid))
        time.sleep(1000)
    if response == "die":
        os._exit(3)
    if response == "pid":
        return os.getpid()
    return sample.ticket["fee"] / 40

met = None

async def meet(sample, response):
    global met
    if response == "block":
        time.sleep(1000)
    if response == "sleep":
        await asyncio.sleep(1000)
    met = met or asyncio.Barrier(2)
    await met.wait()  # returns when two calls run at the same time
    return 1

def lengths(samples, responses):
    return [len(response) for response in responses]
"""
Open = Callable[..., AbstractAsyncContextManager[FunctionPool]]


@pytest.fixture
def open_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    (tmp_path / "string.py").write_text("")  # named like a module of the standard library

    @asynccontextmanager
    async def open_pool(name: str, processes: int = 1, **section: Any) -> AsyncIterator[FunctionPool]:
        config = CustomRewardConfig(path=f"mine.py:{name}", **section)
        pool = FunctionPool(RewardSource.of("mine", config), processes)
        try:
            yield pool
        finally:
            pool.close()

    return open_pool


async def test_hanging_call_kills_its_process_and_children(open_function: Open, tmp_path: Path) -> None:
    async with open_function("act", deadline_s=1.5) as pool:
        (first,) = await pool.score(SAMPLE, ["pid"])
        assert await pool.score(SAMPLE, ["sleep"]) == [
            FunctionTimeout(detail="mine (mine.py:act) did not return within 1.5 s")
        ]
        (second,) = await pool.score(SAMPLE, ["pid"])
        assert isinstance(first, Scored) and isinstance(second, Scored) and first != second
        child = Path(f"/proc/{(tmp_path / 'child').read_text()}/stat")
        assert not child.exists() or child.read_text().split()[2] == "Z"


async def test_function_can_terminate_its_own_processes(open_function: Open) -> None:
    """Ray's processes have SIGTERM blocked in a local run, and children inherit that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        async with open_function("act") as pool:
            assert await pool.score(SAMPLE, ["terminate"]) == [Scored(value=-float(signal.SIGTERM))]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


async def test_dead_process_fails_its_call_and_is_replaced(open_function: Open) -> None:
    async with open_function("act") as pool:
        (outcome,) = await pool.score(SAMPLE, ["die"])
        assert outcome == FunctionFailed(detail="mine (mine.py:act) lost its process (exit code 3)")
        (pid,) = await pool.score(SAMPLE, ["pid"])
        assert isinstance(pid, Scored)
        os.kill(int(pid.value), signal.SIGKILL)
        outcomes = [(await pool.score(SAMPLE, ["text"]))[0] for _ in range(2)]
        killed = FunctionFailed(detail="mine (mine.py:act) lost its process (SIGKILL)")
        assert outcomes in ([killed, Scored(value=1.0)], [Scored(value=1.0)] * 2), "by when the end was noticed"


async def test_waiting_for_a_free_process_has_no_deadline(open_function: Open) -> None:
    async with open_function("act", processes=2) as pool:
        outcomes = await asyncio.gather(*(pool.score(SAMPLE, ["pid"]) for _ in range(20)))
        pids = {outcome.value for (outcome,) in outcomes if isinstance(outcome, Scored)}
        assert 1 <= len(pids) <= 2 and len(outcomes) == 20


async def test_a_cancelled_call_does_not_hold_its_process(open_function: Open) -> None:
    async with open_function("act", deadline_s=1000) as pool:
        await pool.start()
        call = asyncio.create_task(pool.score(SAMPLE, ["sleep"]))
        while not Path("child").is_file():
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await pool.score(SAMPLE, ["text"]) == [Scored(value=1.0)]


async def test_async_function_runs_calls_concurrently(open_function: Open) -> None:
    async with open_function("meet") as pool:
        both = await asyncio.gather(pool.score(SAMPLE, ["a"]), pool.score(SAMPLE, ["b"]))
        assert both == [[Scored(value=1.0)]] * 2


async def test_blocking_async_function_is_killed(open_function: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_pool, "GRACE_S", 0.2)
    async with open_function("meet", deadline_s=1.0) as pool:
        await pool.start()
        (slow,) = await pool.score(SAMPLE, ["sleep"])
        (blocked,) = await pool.score(SAMPLE, ["block"])
        assert isinstance(slow, FunctionTimeout) and isinstance(blocked, FunctionTimeout)
        both = await asyncio.gather(pool.score(SAMPLE, ["a"]), pool.score(SAMPLE, ["b"]))
        assert both == [[Scored(value=1.0)]] * 2


async def test_batched_function_receives_a_group(open_function: Open) -> None:
    async with open_function("lengths", batch=True) as pool:
        assert await pool.score(SAMPLE, ["a", "bb", "bb"]) == [Scored(value=v) for v in (1.0, 2.0, 2.0)]


async def test_missing_function_is_a_failure_and_no_exception(open_function: Open) -> None:
    async with open_function("nothing") as pool:
        (outcome,) = await pool.score(SAMPLE, ["text"])
        assert isinstance(outcome, FunctionFailed)
        assert outcome.detail.startswith("mine (mine.py:nothing) no such function; mine.py defines act,")
        with pytest.raises(ConfigError, match="no such function"):
            await pool.start()


def test_file_that_exits_or_hangs_while_loading_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exits, hangs = ("import os; os._exit(4)", 60.0, "exit code 4"), ("import time; time.sleep(1000)", 1.0, "within 1 s")
    for text, seconds, message in (exits, hangs):
        monkeypatch.setattr(function_pool, "LOAD_S", seconds)
        (tmp_path / "mine.py").write_text(text)
        source = RewardSource.of("mine", CustomRewardConfig(path=f"{tmp_path}/mine.py:f"))
        with pytest.raises(ConfigError, match=message):
            FunctionProcess(source)


def test_check_records_digests_of_weighted_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    off = CustomRewardConfig(path="no.py:f", weight=0.0)
    rewards = RewardsConfig(
        consistency=ConsistencyConfig(weight=0.0), custom={"a": CustomRewardConfig(path="mine.py:act"), "b": off}
    )
    checked = check_functions(rewards)
    digest = checked.custom["a"].sha256
    assert digest is not None and checked.custom["b"] == off
    assert check_functions(checked) == checked
    (tmp_path / "mine.py").write_text(FUNCTIONS + "\n# edited\n")
    with pytest.raises(ConfigError, match=f"has changed since the run began .*recorded {digest[:12]}"):
        check_functions(checked)


AGENT = """
import time
from types import SimpleNamespace

async def reply(messages, tools):
    said = messages[-1]["content"]
    call = {"id": "1", "type": "function", "function": {"name": tools[0]["function"]["name"], "arguments": "{}"}}
    if said == "sleep":
        time.sleep(1000)
    return {
        "text": "Hello.",
        "call": {"role": "assistant", "content": None, "tool_calls": [call]},
        "object": SimpleNamespace(model_dump=lambda: {"content": "Hi.", "tool_calls": None, "annotations": object()}),
        "refusal": {"content": None, "refusal": "I cannot do that."},
        "parts": {"content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo."}]},
        "number": 4,
        "none": None,
        "nothing": {"content": None},
        "call without name": {"tool_calls": [{"function": {}}]},
        "not JSON": {"content": "x", "tool_calls": [object()]},
    }[said]
"""


async def test_agent_function_returns_a_text_or_a_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(function_pool, "GRACE_S", 0.2)
    (tmp_path / "mine.py").write_text(AGENT)
    source = AgentSource(key="agent", name="agent", path="mine.py:reply", deadline_s=0.5).with_text()
    pool = FunctionPool(source, 1)
    tools = ({"type": "function", "function": {"name": "lookup"}},)
    try:

        async def ask(said: str) -> Any:
            return await pool.reply(Question(messages=({"role": "user", "content": said},), tools=tools))

        texts = {"text": "Hello.", "object": "Hi.", "refusal": "I cannot do that.", "parts": "Hello."}
        assert {said: (await ask(said)).text for said in texts} == texts
        assert (await ask("call")).tool_calls == (RequestedCall(name="lookup", arguments="{}"),)
        for said, message in (
            ("number", "returned 4 (int); return the text of the reply, or a message with content or tool_calls"),
            ("none", "returned None; return"),
            ("nothing", "returned {'content': None} (dict); return"),
            ("call without name", "returned no valid message (tool_calls.0.function.name: Field required)"),
            ("not JSON", "returned a message that is not JSON"),
            ("unknown", "raised KeyError: 'unknown' (mine.py, line 10)"),
        ):
            answer = await ask(said)
            assert answer.failure == "function_failed"
            assert answer.detail.startswith(f"agent (mine.py:reply) {message}")
        assert (await ask("sleep")).failure == "function_timeout"
        assert (await ask("text")).text == "Hello."
    finally:
        pool.close()
