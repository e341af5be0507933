"""Token requirement before joining a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from hamr.config.cluster_security import check_cluster_address, has_token
from hamr.errors import BadInput


def check(address: str | None, *, allow: bool = False, **environ: str) -> None:
    check_cluster_address(address, allow_unauthenticated=allow, environ={"HOME": "/nonexistent", **environ})


@pytest.mark.parametrize(
    "address",
    [None, "local", "127.0.0.1:6379", "ray://127.0.0.1:10001", "localhost:6379", "[::1]:6379", "http://127.0.0.1:8265"],
)
def test_local_cluster_needs_no_token(address: str | None) -> None:
    check(address)


@pytest.mark.parametrize(
    "address", ["10.0.0.1:6379", "ray://head:10001", "http://head.corp:8265", "0.0.0.0:6379", "auto"]
)
def test_remote_cluster_requires_a_token(address: str) -> None:
    with pytest.raises(BadInput) as caught:
        check(address)
    message = str(caught.value)
    assert message.startswith(f"cluster.address: {address!r}: ")
    assert "RAY_AUTH_MODE=token" in message
    assert "cluster.allow_unauthenticated=true" in message
    assert "\n" not in message
    check(address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN="t" * 32)
    check(address, RAY_AUTH_TOKEN="t" * 32)  # Ray turns the check on by itself
    check(address, allow=True)


@pytest.mark.parametrize(
    "environ",
    [{"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "t"}, {"RAY_AUTH_MODE": "token"}, {"RAY_AUTH_TOKEN": ""}],
)
def test_incomplete_token_setup_is_rejected(environ: dict[str, str]) -> None:
    with pytest.raises(BadInput):
        check("10.0.0.1:6379", **environ)


def test_auto_address_uses_the_environment() -> None:
    check("auto", RAY_ADDRESS="127.0.0.1:6379")
    with pytest.raises(BadInput):
        check("auto", RAY_ADDRESS="10.0.0.1:6379")


def test_non_empty_token_file_counts_as_a_token(tmp_path: Path) -> None:
    file = tmp_path / ".ray" / "auth_token"
    file.parent.mkdir()
    file.write_text("")
    assert not has_token({"HOME": str(tmp_path)})
    file.write_text("t" * 32)
    assert has_token({"HOME": str(tmp_path)})
    assert has_token({"HOME": "/nonexistent", "RAY_AUTH_TOKEN_PATH": str(file)})
    assert not has_token({"HOME": str(tmp_path), "RAY_AUTH_TOKEN_PATH": str(tmp_path / "no")})
