"""`hamr serve` as a process: after SIGTERM it answers pending requests. The system behind it is scripted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hamr.adapters.client import RewardClient
from hamr.telemetry.record_json import record_from_dict
from hamr.types import Scored

SAMPLE = {
    "id": "a",
    "ticket": {},
    "policy": "",
    "tools": [],
    "history": [],
    "references": [{"action": "reply", "content": "Hello!"}],
}

SERVER = """
import asyncio, sys
from hamr.config.load import load_config
from hamr.data.responses import as_group
from hamr.apps.serve.run import serve
from hamr.types import Reply, RewardRecord, Scored

class System:
    def __init__(self, config, run, note):
        self.run = run
    def __enter__(self):
        print("up", flush=True)
        return self
    def __exit__(self, *error):
        print("down", flush=True)
    async def ascore(self, samples):
        if samples[0][1] == ["wait"]:
            print("under way", flush=True)
            await asyncio.sleep(1.0)
        rollouts = [r for item in samples for r in as_group(item, where="s", number=1).rollouts(self.run)]
        return [RewardRecord(key=r.key, total=Scored(value=len(r.text) / 10), components=(), band="inside",
                             action=Reply(content=r.text)) for r in rollouts]

serve(load_config(sys.argv[1:]), System)
"""


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_stopping_server_answers_pending_requests(tmp_path: Path, signum: signal.Signals) -> None:
    kept = tmp_path / "records.jsonl"
    overrides = ["experiment=smoke", "serve.port=0", f"serve.records={kept}"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4])}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, *overrides],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    url = process.stdout.readline().split()[2]
    client = RewardClient(url, attempts=1)
    assert client.rewards([(SAMPLE, ["four"])]) == [[0.4]]
    answers: list[list[list[float | None]]] = []
    asking = threading.Thread(target=lambda: answers.append(client.rewards([(SAMPLE, ["wait"])])))
    asking.start()
    assert process.stdout.readline() == "under way\n"
    process.send_signal(signum)
    out, err = process.communicate(timeout=120)
    asking.join()
    assert answers == [[[0.4]]]
    assert (process.returncode, out, err) == (0, "stopping\ndown\n", "")
    records = [record_from_dict(json.loads(line)) for line in kept.read_text().splitlines()]
    assert [record.total for record in records] == [Scored(value=0.4)] * 2
    assert all(record.key.run.startswith("serve-") for record in records), "another start has other keys"
