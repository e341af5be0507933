"""Jobs for a real cluster behind Ray's token: sent, followed, refused. The commands are processes of their own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hamr.config.load import dump_config, load_config
from hamr.observability.ledger import Ledger

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
TOKEN = "a-token-for-this-test-alone-0123456789"


def environment(token: str | None = TOKEN) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    env |= {"PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
    env |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": tempfile.gettempdir()}
    return env | ({"RAY_AUTH_TOKEN": token} if token else {})


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A head with a dashboard, as `ray start` starts one; its URL."""
    with contextlib.ExitStack() as held:
        free = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        port, dashboard, agent = (each.getsockname()[1] for each in free)
    with tempfile.TemporaryDirectory(prefix="hs", dir="/tmp", ignore_cleanup_errors=True) as folder:
        started = subprocess.run(
            [
                sys.executable, "-m", "ray.scripts.scripts", "start", "--head", f"--port={port}", "--num-cpus=4",
                "--include-dashboard=true", f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}",
                f"--temp-dir={folder}",
                "--object-store-memory=100000000", "--disable-usage-stats",
            ],
            env=environment(), capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        try:
            assert started.returncode == 0, started.stdout + started.stderr
            yield f"http://127.0.0.1:{dashboard}"
        finally:
            family = [p for p in psutil.process_iter(["cmdline"]) if f"{folder}" in " ".join(p.info["cmdline"] or ())]
            for process in family:
                process.kill()
            psutil.wait_procs(family, timeout=20)


def hamr(*args: str, cwd: Path, token: str | None = TOKEN) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hamr", *args]
    return subprocess.run(command, cwd=cwd, env=environment(token), capture_output=True, text=True, timeout=200)


def test_a_job_is_sent_followed_and_returns_its_own_exit_code(cluster: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(dump_config(load_config(["experiment=smoke"])))
    Ledger(run / "ledger.sqlite").close()
    work = tmp_path / "work"
    work.mkdir()
    (work / "notes.txt").write_text("mine")
    (work / ".env").write_text("KEY=1")
    where = ("cluster=ray", f"cluster.dashboard={cluster}", "--follow")
    done = hamr("submit", "score", f"input={run}", *where, cwd=work)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "package: 2 files" in done.stdout
    assert "kept back, as they look like keys: .env" in done.stdout
    assert f"dashboard: {cluster}/#/jobs/hamr-score-" in done.stdout
    assert "0 records replayed, 0 differ" in done.stdout, "the job's own words"
    failed = hamr("submit", "score", f"input={tmp_path}/absent.jsonl", *where, "output=/tmp/o.jsonl", cwd=work)
    assert failed.returncode == 2, "the job's own code"
    assert "absent.jsonl" in failed.stdout


@pytest.mark.parametrize(
    ("token", "changes", "says"),
    [
        (
            "another-token-that-is-wrong-0123456789",
            (),
            "does not take the token that is in force here; export RAY_AUTH",
        ),
        (TOKEN, ("pools.judge.replicas=500",), "pools.judge.replicas: 500: 500 x 0.5 CPU"),
        (TOKEN, ("pools.judge.engine.num_cpus=8",), "pools.judge.engine.num_cpus: 8.0: no node has so much CPU free"),
    ],
    ids=["token", "sum", "unit"],
)
def test_what_cannot_be_is_one_line(
    cluster: str, tmp_path: Path, token: str, changes: tuple[str, ...], says: str
) -> None:
    where = ("cluster=ray", f"cluster.dashboard={cluster}")
    refused = hamr("submit", "train", "experiment=smoke", *changes, *where, cwd=tmp_path, token=token)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert says in refused.stderr
    assert refused.stderr.count("\n") == 1
