"""`examples/trl_grpo.py` in the environment that runs it: skipped where TRL is not installed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

pytest.importorskip("trl")
pytest.importorskip("datasets")
pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = {
    "id": "s",
    "ticket": {},
    "policy": "Help the customer.",
    "tools": [],
    "history": [{"role": "customer", "content": "My package is too dear."}],
    "references": [{"action": "reply", "content": "May I offer a cheaper one?"}],
}


class Handler(BaseHTTPRequestHandler):
    """Every second response of a group cannot be scored."""

    sizes: ClassVar[list[int]] = []

    def do_POST(self) -> None:
        groups = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["groups"]
        self.sizes += [len(group["responses"]) for group in groups]
        rewards = [[None if i % 2 else len(t) / 100 for i, t in enumerate(g["responses"])] for g in groups]
        body = json.dumps({"groups": [{"rewards": values, "records": []} for values in rewards]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Quiet."""


def test_trl_trains_with_hamr_rewards_and_skips_missing_ones(tiny: Path, tmp_path: Path) -> None:
    samples = tmp_path / "train.jsonl"
    samples.write_text("".join(json.dumps({**SAMPLE, "id": f"s{i}"}) + "\n" for i in range(8)))
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [sys.executable, str(ROOT / "examples" / "trl_grpo.py"), "--samples", str(samples)]
        command += ["--model", str(tiny), "--url", f"http://127.0.0.1:{server.server_port}", "--new-tokens", "8"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
        server.shutdown()
    assert done.returncode == 0, done.stderr
    logged = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
    assert [row["hamr/failed_frac"] for row in logged] == [0.5, 0.5]
    assert all(row["reward"] == row["reward"] for row in logged), "a number, and no NaN"
    assert set(Handler.sizes) == {4}
