"""A Ray head as `ray start` starts one, behind a token, for commands that are processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.killing import children, kill_all

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Head:
    """`folder` has the session's logs and the packages of jobs."""

    address: str
    dashboard: str
    metrics: str
    folder: Path

    def kill(self) -> None:
        """Kill its processes and all that they have started, without a warning."""
        of_it = [p for p in psutil.process_iter(["cmdline"]) if str(self.folder) in " ".join(p.info["cmdline"] or ())]
        kill_all({*of_it, *(child for p in of_it for child in children(p))})


def environment(token: str | None, **more: str) -> dict[str, str]:
    """Of a shell in which RAY_AUTH_MODE and the token have been exported."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    env |= {"PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
    env |= {"RAY_worker_niceness": "0", "RAY_prestart_worker_first_driver": "0"}  # as where hamr starts Ray
    # Without what vLLM noted of a model there, each engine imports vLLM once more to look at it.
    env["VLLM_CACHE_ROOT"] = os.environ.get("VLLM_CACHE_ROOT", str(Path.home() / ".cache" / "vllm"))
    env |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": tempfile.gettempdir()}
    return env | ({"RAY_AUTH_TOKEN": token} if token else {}) | more


@contextlib.contextmanager
def head(
    env: dict[str, str], cpus: int = 4, *, dashboard: bool = False, more_nodes: Mapping[str, float] | None = None
) -> Iterator[Head]:
    """Start a head, and kill it afterwards.

    Args:
        dashboard: Whether jobs can be submitted. The dashboard's modules are a dozen processes.
        more_nodes: Resources of each of the two nodes that Ray's autoscaler may add, on this machine.
    """
    with contextlib.ExitStack() as held:
        free = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(4)]
        port, jobs, agent, metrics = (each.getsockname()[1] for each in free)
    with tempfile.TemporaryDirectory(prefix="hs", dir="/tmp", ignore_cleanup_errors=True) as folder:
        scaling = []
        if more_nodes is not None:
            config = Path(folder) / "autoscaling.json"
            config.write_text(json.dumps(_autoscaling(f"127.0.0.1:{port}", cpus, more_nodes)))
            scaling = [f"--autoscaling-config={config}"]
            env = env | _SCALED
        started = subprocess.run(
            [
                sys.executable, "-m", "ray.scripts.scripts", "start", "--head", f"--port={port}", f"--num-cpus={cpus}",
                f"--include-dashboard={str(dashboard).lower()}", f"--dashboard-port={jobs}",
                f"--dashboard-agent-listen-port={agent}",
                f"--metrics-export-port={metrics}", f"--temp-dir={folder}",
                "--object-store-memory=100000000", "--disable-usage-stats", *scaling,
            ],
            env=env, capture_output=True, text=True, timeout=200,
        )  # fmt: skip
        node = Head(
            address=f"127.0.0.1:{port}",
            dashboard=f"http://127.0.0.1:{jobs}",
            metrics=f"http://127.0.0.1:{metrics}/metrics",
            folder=Path(folder),
        )
        try:
            assert started.returncode == 0, started.stdout + started.stderr
            yield node
        finally:
            node.kill()


# --- Ray's provider of nodes that are processes of this machine -----------------------------------

_HEAD_ID = "f" * 51 + "00000"
_SCALED = {"RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_OVERRIDE_NODE_ID_FOR_TESTING": _HEAD_ID}
_COMMANDS = (
    "cluster_synced_files", "initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands",
    "head_start_ray_commands", "worker_start_ray_commands",
)  # fmt: skip


def _autoscaling(gcs: str, cpus: int, more_nodes: Mapping[str, float]) -> dict[str, Any]:
    """Return the value of `ray start --autoscaling-config`. A provider of machines requires all of these keys."""
    more = {**more_nodes, "object_store_memory": 100 << 20}
    return {
        "cluster_name": "here",
        "max_workers": 8,
        "provider": {
            "type": "fake_multinode", "head_node_id": _HEAD_ID, "use_node_id_as_ip": True, "gcs_address": gcs,
        },
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": cpus}, "node_config": {}, "max_workers": 0},
            "more": {"resources": more, "node_config": {}, "min_workers": 0, "max_workers": 2},
        },
        "head_node_type": "ray.head.default",
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 5,
        **{key: {} for key in ("auth", "file_mounts", "docker")},
        **{key: [] for key in _COMMANDS},
    }  # fmt: skip


def holders(folder: Path, secret: str) -> list[str]:
    """Files below `folder` that contain `secret`."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [str(path.relative_to(folder)) for path in files if secret.encode() in path.read_bytes()]
