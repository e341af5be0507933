"""RL on an agent harness, with the real engines and OpenAI's client, as documented."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hamr.telemetry.ledger import Ledger
from tests.docs_pages import DOCS, commands, save_files
from tests.e2e.runs import hamr

pytestmark = [pytest.mark.e2e, pytest.mark.deep, pytest.mark.timeout(600)]

PAGE = DOCS / "how-to" / "harness.md"
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def test_harness_trains_as_documented(tmp_path: Path, joined: tuple[str, ...]) -> None:
    save_files(PAGE, tmp_path)
    [documented] = [command for command in commands(PAGE) if "my_agent.py" in command]
    small = {"experiment.run_dir": "run", "logging": "offline", "data.max_eval": 2}
    command = [*hamr(*shlex.split(documented)[1:], **small), *joined]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PATH": PATH}, capture_output=True, text=True, timeout=550
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    rl = [line for line in lines if line.get("stage") == "rl"]
    assert len(rl) == 2
    for row in rl:
        assert row["episodes/failed_frac"] == 0.0
        assert row["episodes/component/reward"] == row["episodes/reward/mean"]
    assert any("eval/rl/episodes/reward" in line for line in lines)
    with Ledger(tmp_path / "run/ledger.sqlite", readonly=True) as ledger:
        records = list(ledger.rows())
    turns = [r for r in records if r.episode is not None]
    assert turns and all(r.observation.startswith("Where is my parcel ") for r in turns if not r.key.turn)
    assert all(r.response_tokens and r.versions for r in turns)
