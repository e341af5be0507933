"""Pre-flight check of a cluster's head before joining it, against a scripted head."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
import ray
from ray.core.generated import gcs_service_pb2 as messages
from ray.core.generated import gcs_service_pb2_grpc as services

from hamr.cluster.cluster_preflight import OWNER, check_joinable
from hamr.cluster.job_cluster import JobCluster
from hamr.errors import BadInput

HERE = {"ray_version": ray.__version__, "python_version": ".".join(map(str, sys.version_info[:3]))}

Start = Callable[..., str]


class Head(services.InternalKVGcsServiceServicer):  # type: ignore[misc]
    def __init__(self, described: dict[str, str], refuses: grpc.StatusCode | None) -> None:
        self.described, self.refuses = described, refuses

    def InternalKVGet(self, request: Any, context: grpc.ServicerContext) -> Any:
        if self.refuses is not None:
            context.abort(self.refuses, "no")
        assert (request.namespace, request.key) == (b"cluster", b"CLUSTER_METADATA")
        return messages.InternalKVGetReply(value=json.dumps(self.described).encode() if self.described else b"")


@pytest.fixture
def start() -> Iterator[Start]:
    servers = []

    def started(described: dict[str, str], refuses: grpc.StatusCode | None = None) -> str:
        server = grpc.server(futures.ThreadPoolExecutor(1))
        services.add_InternalKVGcsServiceServicer_to_server(Head(described, refuses), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield started
    for server in servers:
        server.stop(None).wait()


def refused(address: str) -> str:
    with pytest.raises(BadInput) as caught:
        check_joinable(address)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_head_of_the_same_versions_is_joined(start: Start) -> None:
    check_joinable(start(HERE))
    check_joinable(start({}))


def test_other_versions_are_named(start: Start) -> None:
    address = start(HERE | {"python_version": "3.9.1"})
    message = refused(address)
    assert message.startswith(
        f"cluster.address: '{address}': was started with Ray {ray.__version__} and Python 3.9.1, "
    )
    assert f"this process has Ray {ray.__version__} and Python {HERE['python_version']}; install the same" in message
    assert "was started with Ray 2.52.0 and Python" in refused(start(HERE | {"ray_version": "2.52.0"}))


def test_wrong_or_missing_token_is_reported(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    address = start(HERE, grpc.StatusCode.UNAUTHENTICATED)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "wrong" * 8)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert "rejects the token of this process; export RAY_AUTH_MODE=token and RAY_" in refused(address)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert "requires a token; export RAY_AUTH_MODE=token and RAY_AUTH_TOKEN" in refused(address)


def test_non_ray_server_is_reported(start: Start) -> None:
    address = start(HERE, grpc.StatusCode.UNIMPLEMENTED)
    assert "does not answer as a Ray cluster (unimplemented)" in refused(address)


@pytest.mark.parametrize("form", ["{}", "ray://{}"])
def test_unreachable_address_is_reported(form: str) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        address = form.format(f"127.0.0.1:{unheard.getsockname()[1]}")
        assert f"cluster.address: '{address}': connection failed" in refused(address)


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
def test_name_that_no_resolver_takes_is_reported(host: str) -> None:
    assert f"cluster.address: '{host}:6379': connection failed" in refused(f"{host}:6379")


def test_auto_address_resolves_as_in_ray(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    address = start(HERE | {"ray_version": "2.52.0"})
    monkeypatch.setenv("RAY_ADDRESS", address)
    assert f"cluster.address: '{address}': was started with Ray 2.52.0" in refused("auto")


@contextlib.contextmanager
def raylet(*options: str) -> Iterator[None]:
    """A process with the command line of a node of Ray."""
    command = " ".join(["/ray/raylet/raylet", *options])
    with subprocess.Popen(["bash", "-c", 'exec -a "$0" sleep 60', command]) as process:
        try:
            while command not in psutil.Process(process.pid).cmdline()[:1]:
                time.sleep(0.01)
            yield
        finally:
            process.kill()


def test_auto_address_joins_no_ray_of_a_run_or_another_user(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = start(HERE)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray._private.services.canonicalize_bootstrap_address", lambda auto: address)
    with raylet(f"--gcs-address={address}", f"--temp-dir={tmp_path / 'ray'}"):
        check_joinable("auto")
        (tmp_path / OWNER).write_text(json.dumps({"pid": 12}))
        assert f"would join the Ray at {address} of the run of process 12; give the address of yours" in refused("auto")
        monkeypatch.setattr(os, "getuid", lambda: -1)
        assert f"would join the Ray at {address} of user " in refused("auto")
        monkeypatch.setenv("RAY_ADDRESS", address)
        check_joinable("auto")


def test_auto_address_without_a_ray_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(auto: str) -> str:
        raise ConnectionError("a page of text")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray._private.services.canonicalize_bootstrap_address", missing)
    assert "no Ray runs on this machine; start one" in refused("auto")


class _JobServer(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        code = self.status if "Authorization" not in self.headers else 500
        self.send_response(code if self.path == "/api/version" else 404)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Print nothing."""


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (200, "warning: URL takes jobs without a token from any client that reaches it"),
        (401, "access:    URL requires a token"),
        (403, "access:    URL requires a token"),
        (302, "warning: could not tell whether URL requires a token (HTTP status 302 without one)"),
        (503, "warning: could not tell whether URL requires a token (HTTP status 503 without one)"),
    ],
)
def test_job_server_is_asked_without_a_token(status: int, says: str) -> None:
    with HTTPServer(("127.0.0.1", 0), type("Server", (_JobServer,), {"status": status})) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        cluster = object.__new__(JobCluster)
        cluster.dashboard = f"http://127.0.0.1:{server.server_port}"
        assert cluster.describe_access() == says.replace("URL", cluster.dashboard)


def test_non_address_is_passed_to_ray() -> None:
    check_joinable("local")
