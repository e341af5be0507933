"""Whether a cluster may be joined: elsewhere than on this machine only behind Ray's token authentication."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from hamr.errors import BadInput
from hamr.security.endpoints import is_loopback


def check_cluster_address(
    address: str | None,
    *,
    allow_unauthenticated: bool,
    key: str = "cluster.address",
    environ: Mapping[str, str] | None = None,
) -> None:
    """Raises BadInput for a cluster that is not on this machine's loopback interface, unless a token is in force here.

    Who reaches a Ray without authentication runs code on all its nodes. `auto` counts as what RAY_ADDRESS says, else as
    elsewhere: Ray itself looks for the address, and what it finds is rarely a loopback one. Null starts a local Ray,
    which has a token of its own. Whether the cluster insists on the token is the cluster's affair: it cannot be seen
    from here.
    """
    env = os.environ if environ is None else environ
    given = env.get("RAY_ADDRESS", address) if address == "auto" else address
    if given is None or given == "local" or allow_unauthenticated or is_loopback(host_of(given)):
        return
    if env.get("RAY_AUTH_MODE", "token") == "token" and has_token(env):
        return
    raise BadInput(
        key,
        address,
        "is not on this machine, and no token of Ray's is in force here; export RAY_AUTH_MODE=token and RAY_AUTH_TOKEN "
        "(or RAY_AUTH_TOKEN_PATH) as on the cluster, or, in a network where everyone may run code on it, set "
        "cluster.allow_unauthenticated=true",
    )


def host_of(address: str) -> str:
    """The host of `host:port`, `ray://host:port` or a dashboard's URL; the whole where there is none.

    >>> host_of("ray://[::1]:10001"), host_of("10.0.0.1:6379")
    ('::1', '10.0.0.1')
    """
    try:
        return urlsplit(address if "://" in address else f"//{address}").hostname or address
    except ValueError:  # a bracket that is not closed
        return address


def has_token(environ: Mapping[str, str]) -> bool:
    """Whether Ray would find a token: RAY_AUTH_TOKEN, the file that RAY_AUTH_TOKEN_PATH names, or ~/.ray/auth_token."""
    if environ.get("RAY_AUTH_TOKEN"):
        return True
    named = environ.get("RAY_AUTH_TOKEN_PATH")
    file = Path(named) if named else Path(environ.get("HOME", "~")).expanduser() / ".ray" / "auth_token"
    return file.is_file() and file.stat().st_size > 0
