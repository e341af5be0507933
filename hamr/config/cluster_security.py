"""Security checks before a cluster is joined, which requires Ray's token authentication, and before it gets a
configuration."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hamr.errors import BadInput
from hamr.security.endpoints import is_loopback
from hamr.security.redaction import REDACTED, secret_values, spellings

if TYPE_CHECKING:
    from hamr.config.schema import Config


def check_cluster_address(
    address: str | None,
    *,
    allow_unauthenticated: bool,
    key: str = "cluster.address",
    environ: Mapping[str, str] | None = None,
) -> None:
    """Raise BadInput for a cluster outside this machine's loopback interface, unless a token is in force here.

    Anyone who can reach a Ray cluster without authentication can run code on all its nodes. `auto` means the value of
    RAY_ADDRESS, else a remote cluster: Ray itself searches for the address, which is rarely a loopback one. Null starts
    a local Ray with its own token. Whether the cluster enforces the token cannot be checked from here.
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
        "is not on this machine, and no Ray token is set here; export RAY_AUTH_MODE=token and RAY_AUTH_TOKEN "
        "(or RAY_AUTH_TOKEN_PATH) as on the cluster, or, in a network where everyone may run code on the cluster, set "
        "cluster.allow_unauthenticated=true",
    )


def host_of(address: str) -> str:
    """Return the host of `host:port`, `ray://host:port` or a dashboard URL. The whole address if it has none.

    >>> host_of("ray://[::1]:10001"), host_of("10.0.0.1:6379")
    ('::1', '10.0.0.1')
    """
    try:
        return urlsplit(address if "://" in address else f"//{address}").hostname or address
    except ValueError:  # an unclosed bracket
        return address


def has_token(environ: Mapping[str, str]) -> bool:
    """Return True if Ray finds a token: RAY_AUTH_TOKEN, the file in RAY_AUTH_TOKEN_PATH, or ~/.ray/auth_token."""
    if environ.get("RAY_AUTH_TOKEN"):
        return True
    named = environ.get("RAY_AUTH_TOKEN_PATH")
    file = Path(named) if named else Path(environ.get("HOME", "~")).expanduser() / ".ray" / "auth_token"
    return file.is_file() and file.stat().st_size > 0


def refuse_secrets(config: Config, arguments: tuple[str, ...] = ()) -> None:
    """Raise BadInput for a setting or an argument that contains the value of a secret environment variable.

    The files of a run redact such values. The description of a job, which anyone with access to the cluster can read,
    must contain the actual settings.
    """
    texts = [("argument", argument) for argument in arguments]
    refuse_secret_texts([*_texts(config.model_dump(mode="json")), *texts], "be sent with the job")


def refuse_secret_texts(texts: Iterable[tuple[str, str]], would: str) -> None:
    """Raise BadInput for the first (key, text) that contains the value of a secret environment variable."""
    secrets = [form for secret in secret_values() for form in spellings(secret)]
    for key, text in texts:
        if any(secret in text for secret in secrets):
            raise BadInput(
                key,
                REDACTED,
                f"contains the value of a secret environment variable and would {would}; remove it, or name the "
                "variable in a setting that asks for one (api_key_env)",
            )


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _texts(inner, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, key)
