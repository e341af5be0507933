"""A real run on a cluster behind a token: its secrets are in no file, and Prometheus finds its figures."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.integration.heads import ROOT, Head, environment, head, holders

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

SECRET = "canary7b3e"
"""Part of every secret, so that one search finds them all."""
KEYS = {
    "JUDGE_API_KEY": f"sk-{SECRET}-judge",
    "HF_TOKEN": f"hf_{SECRET}",
    "WANDB_API_KEY": SECRET.ljust(40, "0"),
    "DB_PASSWORD": f"pass-{SECRET}",
}
TOKEN = f"token-{SECRET}-0123456789abcdef0123456789"


class Judge(BaseHTTPRequestHandler):
    """An endpoint that says Yes, and remembers who asked."""

    asked_with: set[str | None] = set()  # noqa: RUF012

    def do_POST(self) -> None:
        self.asked_with.add(self.headers.get("Authorization"))
        self.rfile.read(int(self.headers["Content-Length"]))
        likely = [
            {"token": t, "logprob": p, "bytes": None} for t, p in ((" Yes", -0.3), (" Part", -2.0), (" No", -2.2))
        ]
        said = [(t, likely if t == " Yes" else []) for t in ("Verdict", ":", " Yes")]
        content = [{"token": t, "logprob": -0.1, "bytes": None, "top_logprobs": top} for t, top in said]
        message = {"role": "assistant", "content": "Verdict: Yes"}
        choice = {"index": 0, "finish_reason": "stop", "message": message, "logprobs": {"content": content}}
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@dataclass(kw_only=True)
class Ran:
    """A finished run and all that Prometheus was told meanwhile: name -> the labels of its samples."""

    folder: Path
    output: str
    cluster: Head
    scraped: dict[str, set[str]] = field(default_factory=dict)

    def scrape(self) -> None:
        try:
            with urllib.request.urlopen(self.cluster.metrics, timeout=5) as answer:
                text = answer.read().decode()
        except urllib.error.URLError:
            return
        for name, labels in re.findall(r"^(ray_hamr_\w+)\{(.*)\} \S+", text, re.MULTILINE):
            self.scraped.setdefault(name, set()).add(labels)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    work = tmp_path_factory.mktemp("observed")
    env = environment(TOKEN, **KEYS, RAY_metrics_report_interval_ms="500")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    given = {
        "experiment": "smoke", "experiment.run_dir": work / "run", "experiment.prompts_per_step": 4,
        "rollout.samples_per_prompt": 4, "experiment.eval_every": 1, "logging": "offline",
        "logging.sinks": "[prometheus]", "logging.wandb.group": f"of-{KEYS['DB_PASSWORD']}",
        "pools.judge.type": "openai", "pools.judge.endpoint": f"http://127.0.0.1:{server.server_port}/v1",
        "pools.judge.api_key_env": "JUDGE_API_KEY",
    }  # fmt: skip
    with head(env) as cluster:
        command = [sys.executable, "-m", "hamr", "train", *(f"{key}={value}" for key, value in given.items())]
        command.append(f"cluster.address={cluster.address}")
        with (work / "output").open("wb") as output:
            process = subprocess.Popen(command, cwd=work, env=env, stdout=output, stderr=subprocess.STDOUT)
        found = Ran(folder=work / "run", output="", cluster=cluster)
        deadline = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < deadline:
            found.scrape()
            time.sleep(0.3)
        process.terminate()
        found.output = (work / "output").read_text()
        assert process.wait(60) == 0, found.output[-4000:]
        yield found
    server.shutdown()


def test_its_secrets_are_in_no_file(ran: Ran) -> None:
    assert Judge.asked_with == {f"Bearer {KEYS['JUDGE_API_KEY']}"}, "the key was there, and was used"
    files = {path.name for path in ran.folder.rglob("*")}
    assert {"config.yaml", "ledger.sqlite", "metrics.jsonl", "samples.jsonl", "report.html", "summary.json"} <= files
    assert any(name.endswith(".wandb") for name in files)
    assert "group: of-[redacted]" in (ran.folder / "config.yaml").read_text()
    assert len(list(ran.cluster.folder.rglob("*.log"))) > 5, "the logs of Ray's processes"
    assert holders(ran.folder.parent, SECRET) == [], "the run folder, W&B's in it, Hydra's if it wrote any, the output"
    assert holders(ran.cluster.folder, SECRET) == []


def test_prometheus_is_told_all_that_the_dashboard_shows(ran: Ran) -> None:
    dashboard = json.loads((ROOT / "launch" / "grafana.json").read_text())
    wanted = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    names = {re.match(r"ray_\w+", expression)[0] for expression in wanted}
    assert len(names) > 20
    assert names - ran.scraped.keys() == set()
    for expression in wanted:
        name, labels = re.fullmatch(r"(\w+)\{(.*)\}", expression).groups()
        fixed = [label for label in re.findall(r'\w+="[^"]*"', labels) if "$" not in label]
        assert any(all(label in seen for label in fixed) for seen in ran.scraped[name]), expression
    assert any('run="run"' in seen and 'stage="rl"' in seen for seen in ran.scraped["ray_hamr_timing_step_total"])
