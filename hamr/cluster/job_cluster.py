"""Client of a cluster that accepts jobs over HTTP through Ray Jobs: list nodes, submit, follow."""

from __future__ import annotations

import contextlib
import http.client
import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from hamr.cluster.cluster_preflight import REACH_S, TOKEN
from hamr.cluster.nodes import node_names
from hamr.cluster.placement import Node
from hamr.errors import BadInput, HamrError

KEY = "cluster.dashboard"
STOP_WAIT_S = 30
"""Seconds that `ray job stop` waits between SIGTERM and SIGKILL. The default of 3 s is too short for a checkpoint."""
AGENT_S = 60.0


class JobCluster:
    """Ray's job server at a dashboard's URL. Every method raises BadInput if the address or the token is wrong."""

    def __init__(self, dashboard: str) -> None:
        from ray.job_submission import JobSubmissionClient

        for chatty in ("ray.dashboard.modules.dashboard_sdk", "ray.dashboard.modules.job.sdk"):
            logging.getLogger(chatty).setLevel(logging.ERROR)
        self.dashboard = dashboard.rstrip("/")
        _check_reachable(self.dashboard)
        with _only_this_address(), self._asking():
            self._client = JobSubmissionClient(self.dashboard)

    def describe_access(self) -> str:
        """Return a line that says whether the job server refuses a request without a token. Anyone who reaches one that
        does not can run code on all nodes."""
        parts = urlsplit(self.dashboard)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        with self._asking(), contextlib.closing(kind(parts.hostname or "", parts.port, timeout=REACH_S)) as connection:
            connection.request("GET", f"{parts.path}/api/version")
            status = connection.getresponse().status
        if status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
            return f"access:    {self.dashboard} requires a token"
        if status == http.client.OK:
            return f"warning: {self.dashboard} takes jobs without a token from any client that reaches it"
        return f"warning: could not tell whether {self.dashboard} requires a token (HTTP status {status} without one)"

    def nodes(self) -> list[Node]:
        """Return the live nodes with their total resources, since usage is visible only from inside the cluster."""
        from ray.util.state import list_nodes

        with _only_this_address(), self._asking():
            found = [n for n in list_nodes(address=self.dashboard, limit=10_000) if n.state == "ALIVE"]
        names = node_names({n.node_id: n.node_ip for n in found})
        return [Node(name=names[n.node_id], resources=n.resources_total, labels=n.labels or {}) for n in found]

    def submit(self, command: str, package: Path, name: str) -> str:
        """Upload the archive and start `command` in it. Return the job's id."""
        # All users of the cluster can read the variables.
        job = {"working_dir": str(package), "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WAIT_S)}}
        deadline = time.monotonic() + AGENT_S
        while True:
            try:
                with self._asking():
                    return self._client.submit_job(entrypoint=command, submission_id=name, runtime_env=job)
            except HamrError as e:
                # A cluster that has just started has no agent yet that could start a job.
                if "No available agent" not in str(e) or time.monotonic() > deadline:
                    raise
            time.sleep(1.0)

    def state(self, job: str) -> tuple[str, int | None, str]:
        """Return (Ray's job status, exit code of the job's process, Ray's message)."""
        with self._asking():
            info = self._client.get_job_info(job)
        return str(getattr(info.status, "value", info.status)), info.driver_exit_code, info.message or ""

    async def follow(self, job: str, show: Callable[[str], None]) -> None:
        """Show the job's output until it ends."""
        try:
            async for text in self._client.tail_job_logs(job):
                show(text)
        except (RuntimeError, OSError) as e:
            again = f"ray job logs -f {job} --address {self.dashboard}"
            raise HamrError(
                f"lost the log of {job} ({_first_line(e)}); the job continues, follow it: {again}"
            ) from None

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        from ray.exceptions import AuthenticationError

        try:
            yield
        except AuthenticationError as e:
            wrong = "failed" in str(e).splitlines()[0]
            why = "rejects the token of this process" if wrong else "requires a token"
            raise BadInput(KEY, self.dashboard, f"{why}; {TOKEN}") from None
        except (ConnectionError, OSError) as e:
            raise BadInput(KEY, self.dashboard, f"does not answer as a Ray dashboard ({_first_line(e)})") from None
        except RuntimeError as e:
            raise HamrError(f"the cluster at {self.dashboard}: {_first_line(e)}") from None


@contextlib.contextmanager
def _only_this_address() -> Iterator[None]:
    """Clear environment variables that would override the address, because Ray's clients prefer them."""
    names = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)


def _check_reachable(dashboard: str) -> None:
    try:
        parts = urlsplit(dashboard)
    except ValueError:  # a bracket that is not closed
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(KEY, dashboard, "is not the URL of a dashboard; write http://<head>:8265")
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname, port), timeout=REACH_S).close()
    except (OSError, ValueError) as e:
        raise BadInput(
            KEY, dashboard, f"connection failed ({e}); start the cluster (ray start --head) or correct the address"
        ) from None


def _first_line(error: BaseException) -> str:
    lines = [re.sub(r"\s+", " ", line).strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
