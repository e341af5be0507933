"""A Ray head as `ray start` starts one, behind a token, for commands that are processes of their own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Head:
    """`folder` has the session's logs and whatever jobs brought along."""

    address: str
    dashboard: str
    metrics: str
    folder: Path


def environment(token: str | None, **more: str) -> dict[str, str]:
    """Of a shell in which RAY_AUTH_MODE and the token have been exported."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    env |= {"PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
    env["RAY_worker_niceness"] = "0"  # as where hamr starts Ray; at 15 they wait for whatever else the machine does
    # Without what vLLM noted of a model there, each engine imports vLLM once more to look at it.
    env["VLLM_CACHE_ROOT"] = os.environ.get("VLLM_CACHE_ROOT", str(Path.home() / ".cache" / "vllm"))
    env |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": tempfile.gettempdir()}
    return env | ({"RAY_AUTH_TOKEN": token} if token else {}) | more


@contextlib.contextmanager
def head(env: dict[str, str], cpus: int = 4) -> Iterator[Head]:
    """A head with a dashboard. All its processes are gone afterwards."""
    with contextlib.ExitStack() as held:
        free = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        port, dashboard, agent, metrics = (each.getsockname()[1] for each in free)
    with tempfile.TemporaryDirectory(prefix="hs", dir="/tmp", ignore_cleanup_errors=True) as folder:
        started = subprocess.run(
            [
                sys.executable, "-m", "ray.scripts.scripts", "start", "--head", f"--port={port}", f"--num-cpus={cpus}",
                "--include-dashboard=true", f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={agent}",
                f"--metrics-export-port={metrics}", f"--temp-dir={folder}",
                "--object-store-memory=100000000", "--disable-usage-stats",
            ],
            env=env, capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        try:
            assert started.returncode == 0, started.stdout + started.stderr
            yield Head(
                address=f"127.0.0.1:{port}",
                dashboard=f"http://127.0.0.1:{dashboard}",
                metrics=f"http://127.0.0.1:{metrics}/metrics",
                folder=Path(folder),
            )
        finally:
            family = [p for p in psutil.process_iter(["cmdline"]) if folder in " ".join(p.info["cmdline"] or ())]
            for process in family:
                process.kill()
            psutil.wait_procs(family, timeout=20)


def holders(folder: Path, secret: str) -> list[str]:
    """Files below `folder` in which `secret` stands."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [str(path.relative_to(folder)) for path in files if secret.encode() in path.read_bytes()]
