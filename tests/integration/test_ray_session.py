"""Ray for one run: started, used and cleaned up, however the run ends. Each run is a separate process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from hamr.cluster.session import ray_session
from hamr.config.schema import ClusterConfig
from hamr.errors import BadInput
from hamr.security.processes import alive

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

RUN = """
import asyncio, os, sys, time
from pathlib import Path
import ray
from hamr.pools.deployment import pool_status, start_pools
from hamr.cluster.session import ray_session
from hamr.config.pools import EngineConfig, PoolConfig
from hamr.config.schema import ClusterConfig

POOL = PoolConfig(role="judge", type="openai", endpoint="http://127.0.0.1:9/v1", prompt="judge.en")

async def main(end):
    await start_pools({"judge": POOL}, {}, run="session", timeout_s=150)
    print(*pool_status("session")["judge"]["pids"], flush=True)
    if end == "raise":
        raise ValueError("the run broke")
    await asyncio.sleep(600)

with ray_session(ClusterConfig(temp_dir=sys.argv[1]), logs=Path(sys.argv[2])):
    assert ray.cluster_resources()["CPU"] >= 8
    asyncio.run(main(sys.argv[3]))
print("after")
"""


class Session:
    """Process that runs RUN; `folder` appears in the command line of everything that Ray starts for it."""

    def __init__(self, tmp_path: Path, end: str) -> None:
        # Socket paths hold 107 bytes, and pytest's folders are long.
        self.folder, self.logs = Path(f"/tmp/h{os.getpid()}{end[0]}"), tmp_path / "logs"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        environment |= {"HOME": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, str(self.folder), str(self.logs), end],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def replica(self) -> int:
        """Wait until the pool is ready and return its process id."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.strip().isdigit(), line + self.process.communicate()[1]
        return int(line)

    def ended(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=100)
        return self.process.returncode, out, err

    def left_over(self) -> list[str]:
        """Return processes of this session that still exist after a short grace period."""
        deadline = time.monotonic() + 20
        while (found := self._found()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return found

    def _found(self) -> list[str]:
        lines = (" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))
        return [line[:200] for line in lines if f"{self.folder}/" in line]


@pytest.mark.deep
def test_ray_session_cleans_up_when_the_body_raises(tmp_path: Path) -> None:
    session = Session(tmp_path, "raise")
    replica = session.replica()
    code, out, err = session.ended()
    assert (code, out) == (1, ""), err
    assert "ValueError: the run broke" in err
    assert session.left_over() == []
    assert not alive(replica)
    assert list(session.logs.glob("session_*/worker-*.out")), "the workers' logs were kept"
    assert list(session.folder.iterdir()) == [], "and nothing else"
    session.folder.rmdir()
    assert not (tmp_path / ".ray").exists(), "no token in the home folder"


@pytest.mark.deep
def test_ray_session_cleans_up_after_sigterm(tmp_path: Path) -> None:
    session = Session(tmp_path, "wait")
    replica = session.replica()
    assert session._found(), "Ray's processes are found while they run"
    session.process.send_signal(signal.SIGTERM)
    code, out, err = session.ended()
    assert (code, out) == (143, ""), err
    assert session.left_over() == []
    assert not alive(replica)
    session.folder.rmdir()


async def test_unreachable_cluster_raises_one_clear_error() -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unheard.getsockname()[1]}"
        with (
            pytest.raises(BadInput, match=f"cluster.address: '{address}': connection failed"),
            ray_session(ClusterConfig(address=address)),
        ):
            pass
