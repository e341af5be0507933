"""A SAGE evaluation whose agent is a real pool, stopped in the middle and taken up again by the same command."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from aiohttp import web

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

SAID = json.dumps(
    {
        "classification_output": {"ConsumptionType": "Change"},
        "cot": "",
        "now_path": ["stage1", "stage2", "stage4"],
        "finals": {"Action": "ChangeOrder"},
        "chat": "I will see to it.",
    }
)
TURNS, DIALOGUES = 3, 12


class Agent:
    """A policy behind an endpoint, slow enough to be stopped."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.url = ""
        self._loop = asyncio.new_event_loop()

    def serve(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        ready.set()
        self._loop.run_forever()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._complete)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"

    async def _complete(self, request: web.Request) -> web.Response:
        self.asked.append((await request.json())["messages"][-1]["content"])
        await asyncio.sleep(1.0)
        message = {"role": "assistant", "content": SAID}
        choices = [{"index": 0, "finish_reason": "stop", "message": message, "logprobs": None}]
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return web.json_response(
            {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": choices, "usage": usage}
        )


@pytest.fixture
def agent() -> Iterator[Agent]:
    served, ready = Agent(), threading.Event()
    thread = threading.Thread(target=served.serve, args=(ready,), daemon=True)
    thread.start()
    assert ready.wait(10)
    yield served
    served.stop()
    thread.join(10)


def begun(agent: Agent, folder: Path) -> subprocess.Popen[str]:
    """The command, in a process group of its own as a terminal would start it."""
    told = {
        "benchmark": "sage",
        "scenario": "telecom_package",
        "agent": "talk",
        "simulator": "scripted:patient",
        "judges": "scripted:gold",
        "output": folder,
        "limit": DIALOGUES,
        "max_turns": TURNS,
        "at_once": 2,
        "resamples": 20,
        "pools": "sage_small",
        "pools.talk.type": "openai",
        "pools.talk.endpoint": agent.url,
        "pools.talk.structured": "false",
        "pools.talk.max_ongoing_requests": 4,
    }
    command = [sys.executable, "-m", "hamr", "evaluate", *(f"{key}={value}" for key, value in told.items())]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**environment, "PYTHONPATH": str(Path(__file__).parents[2])},
    )


def rows(folder: Path) -> list[str]:
    file = folder / "traces.jsonl"
    return file.read_text().splitlines() if file.is_file() else []


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_what_was_held_is_kept_and_nobody_stays(agent: Agent, tmp_path: Path, how: signal.Signals, code: int) -> None:
    folder = tmp_path / "out"
    process = begun(agent, folder)
    deadline = time.monotonic() + 150
    while len(rows(folder)) < 3 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) > 2, "Ray and the pool are there"
    if how is signal.SIGINT:
        os.killpg(process.pid, how)  # what Ctrl-C sends
    else:
        process.send_signal(how)
    said, _ = process.communicate(timeout=100)
    assert process.returncode == code, said
    assert psutil.wait_procs(family, timeout=40)[1] == []
    kept = rows(folder)
    if how is signal.SIGINT:
        assert said.splitlines()[-1] == "hamr: interrupted"
        assert (folder / "metrics.json").is_file()
    held = {json.loads(row)["plan"]["id"] for row in kept}
    assert 3 <= len(held) < DIALOGUES

    agent.asked.clear()
    again = begun(agent, folder)
    said, _ = again.communicate(timeout=200)
    assert again.returncode == 0, said
    assert f"{len(held)} held before" in said
    after = rows(folder)
    assert after[: len(kept)] == kept
    assert len({json.loads(row)["plan"]["id"] for row in after}) == len(after) == DIALOGUES
    assert len(agent.asked) == TURNS * (DIALOGUES - len(held))
