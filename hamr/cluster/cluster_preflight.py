"""Pre-flight check: can this process join the Ray cluster?

Ray's core ends the whole process if nothing listens at the address, and prints a page of text if a token is wrong. This
check sends one request beforehand and reports any problem in one line.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from pathlib import Path
from typing import Any

from hamr.config.cluster_security import has_token
from hamr.errors import BadInput

KEY = "cluster.address"
TOKEN = "export RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) as on the cluster"
REACH_S = 10.0
"""Longest wait for the cluster's response."""
OWNER = "owner.json"
"""File next to the folder of a run's own Ray that names the process of the run."""


def check_joinable(address: str) -> None:
    """Check that a Ray cluster at `address` accepts this process. Behind `ray://` only the port is checked.

    Raises:
        BadInput: Nothing answers at `address`, or not Ray; or the token, Ray version or Python version differs.
    """
    given = _find_address(address) if address == "auto" else address
    parts = re.fullmatch(r"(?P<client>ray://)?\[?(?P<host>[^\[\]/]+)\]?:(?P<port>\d+)", given or "")
    if parts is None:  # Ray's own message describes the problem
        return
    host, port = parts["host"], int(parts["port"])
    try:
        socket.create_connection((host, port), timeout=REACH_S).close()
    except (OSError, OverflowError, UnicodeError) as e:  # UnicodeError: a name that no resolver takes
        remedy = f"connection failed ({e}); start the cluster, correct the address, or leave it null for a local Ray"
        raise BadInput(KEY, given, remedy) from e
    if not parts["client"]:
        _check_alike(given, _describe_head(given, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"))


def _find_address(auto: str) -> str | None:
    """Return the address that Ray would use, which is RAY_ADDRESS, else that of the cluster started last.

    Raises BadInput where another user or a run has started that cluster: Ray takes any that runs on this machine.
    """
    from ray._private.services import canonicalize_bootstrap_address

    if given := os.environ.get("RAY_ADDRESS"):
        return given
    try:
        found = canonicalize_bootstrap_address(auto)
    except ConnectionError:
        remedy = "no Ray runs on this machine; start one (ray start --head), or give its address as host:port"
        raise BadInput(KEY, auto, remedy) from None
    if found and (whose := _find_owner(found)):
        raise BadInput(KEY, auto, f"would join the Ray at {found} of {whose}; give the address of yours as host:port")
    return found


def _find_owner(address: str) -> str | None:
    """Return the other user or the run of hamr that has started the cluster at `address`, if its node is here."""
    import psutil

    for process in psutil.process_iter(["cmdline", "uids", "username"]):
        words = " ".join(process.info["cmdline"] or ()).split(" ")
        if "raylet" not in words[0] or f"--gcs-address={address}" not in words:
            continue
        if process.info["uids"] and process.info["uids"].real != os.getuid():
            return f"user {process.info['username']}"
        folder = next((word.partition("=")[2] for word in words if word.startswith("--temp-dir=")), "")
        with contextlib.suppress(OSError, ValueError, KeyError):
            return f"the run of process {json.loads((Path(folder).parent / OWNER).read_text())['pid']}"
    return None


def _describe_head(address: str | None, target: str) -> dict[str, Any]:
    """Return the report of the cluster's head about itself; empty if it reports nothing."""
    import grpc
    from ray._private.grpc_utils import init_grpc_channel
    from ray.core.generated import gcs_service_pb2 as messages
    from ray.core.generated import gcs_service_pb2_grpc as services

    question = messages.InternalKVGetRequest(namespace=b"cluster", key=b"CLUSTER_METADATA")
    with contextlib.closing(init_grpc_channel(target)) as channel:
        try:
            answer = services.InternalKVGcsServiceStub(channel).InternalKVGet(question, timeout=REACH_S)
        except grpc.RpcError as e:
            if e.code() is not grpc.StatusCode.UNAUTHENTICATED:
                reason = f"does not answer as a Ray cluster ({e.code().name.lower()}); give the address of `ray start`"
                raise BadInput(KEY, address, reason) from None
            shown = os.environ.get("RAY_AUTH_MODE") == "token" and has_token(os.environ)
            why = "rejects the token of this process" if shown else "requires a token"
            raise BadInput(KEY, address, f"{why}; {TOKEN}") from None
    return dict(json.loads(answer.value)) if answer.value else {}


def _check_alike(address: str | None, cluster: dict[str, Any]) -> None:
    from ray._private.utils import check_version_info, compute_version_info

    if not cluster:
        return
    try:
        check_version_info(cluster, "here")
    except RuntimeError:
        ray, python = compute_version_info()
        there = f"was started with Ray {cluster['ray_version']} and Python {cluster['python_version']}"
        raise BadInput(
            KEY, address, f"{there}, this process has Ray {ray} and Python {python}; install the same on both"
        ) from None
