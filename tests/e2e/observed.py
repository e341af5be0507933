"""A whole run that is watched from outside while it goes, and searched for secrets behind it."""

from __future__ import annotations

import re
import subprocess
import time
import urllib.request
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

from tests.e2e.runs import COMPARED, hamr
from tests.integration.endpoints import judge_endpoint
from tests.integration.heads import environment, head, holders

SECRET = "canary7b3e"
"""Part of every secret, so that one search finds them all."""
KEYS = {
    "JUDGE_API_KEY": f"sk-{SECRET}-judge",
    "HF_TOKEN": f"hf_{SECRET}",
    "WANDB_API_KEY": SECRET.ljust(40, "0"),
    "DB_PASSWORD": f"pass-{SECRET}",
}
TOKEN = f"token-{SECRET}-0123456789abcdef0123456789"


@dataclass(kw_only=True)
class Observed:
    """A finished run, what Prometheus was told meanwhile (name -> the labels of its samples), and where secrets stood.

    `logs`: how many log files its cluster wrote; `asked_with`: the Authorization headers that its judge saw."""

    folder: Path
    asked_with: set[str | None]
    scraped: dict[str, set[str]] = field(default_factory=dict)
    logs: int = 0
    holders: list[str] = field(default_factory=list)

    def scrape(self, metrics: str) -> None:
        try:
            with urllib.request.urlopen(metrics, timeout=5) as answer:
                text = answer.read().decode()
        except (OSError, HTTPException):  # not up yet, gone, or too busy to answer
            return
        for name, labels in re.findall(r"^(ray_hamr_\w+)\{(.*)\} \S+", text, re.MULTILINE):
            self.scraped.setdefault(name, set()).add(labels)


def observe(work: Path) -> Observed:
    """An unbroken run with the settings COMPARED, on a cluster behind a token, whose judge wants a key."""
    env = environment(TOKEN, **KEYS, RAY_metrics_report_interval_ms="500")
    with judge_endpoint() as judge, head(env) as cluster:
        found = Observed(folder=work / "run", asked_with=judge.asked_with)
        given = COMPARED | judge.settings | {
            "experiment.run_dir": found.folder, "logging.sinks": "[prometheus]",
            "logging.wandb.group": f"of-{KEYS['DB_PASSWORD']}", "pools.judge.api_key_env": "JUDGE_API_KEY",
            "cluster.address": cluster.address,
        }  # fmt: skip
        with (work / "output").open("wb") as output:
            command = hamr("train", **given)
            process = subprocess.Popen(command, cwd=work, env=env, stdout=output, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + 500
        try:
            while process.poll() is None and time.monotonic() < deadline:
                found.scrape(cluster.metrics)
                time.sleep(0.5)
        finally:
            ended = process.poll()
            process.terminate()
            process.wait(60)
        assert ended == 0, (work / "output").read_text()[-4000:]
        found.logs = len(list(cluster.folder.rglob("*.log")))
        # Beside the run folder with W&B's: the output, and Hydra's files if it wrote any.
        found.holders = holders(work, SECRET) + holders(cluster.folder, SECRET)
    return found
