"""Hosts that may receive dialogues and keys."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hamr.adapters.client import RewardClient
from hamr.config.pools import PoolConfig
from hamr.errors import BadInput
from hamr.pools.scorer_openai import OpenAIScorer
from hamr.security.endpoints import VARIABLE, allowed_hosts, check_url, is_loopback, look_up

NAMES = {
    "api.example": ["93.184.216.34"],
    "judge.corp": ["10.1.2.3"],
    "two.faced": ["93.184.216.34", "10.1.2.3"],
    "metadata.cloud": ["169.254.169.254"],
    "six.example": ["2606:2800:220:1::1"],
    "gone.example": [],
}


def resolve(host: str) -> Sequence[str]:
    if not NAMES[host]:
        raise OSError("Name or service not known")
    return NAMES[host]


def check(url: str, listed: str | None = None, look: bool = True) -> None:
    environ = {} if listed is None else {VARIABLE: listed}
    check_url("pools.judge.endpoint", url, environ=environ, resolve=resolve if look else None)


@pytest.mark.parametrize(
    "url",
    ["http://localhost:8000/v1", "http://127.0.0.1:1", "http://127.9.9.9", "http://[::1]:8000/v1", "https://api.example/v1",
     "https://93.184.216.34/v1", "https://six.example"],
)  # fmt: skip
def test_loopback_and_public_hosts_are_allowed_by_default(url: str) -> None:
    check(url)


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("http://10.0.0.1/v1", "private"),
        ("http://172.16.5.4/v1", "private"),
        ("http://192.168.1.1:8000", "private"),
        ("http://100.64.0.1", "private"),
        ("http://[fc00::1]/v1", "private"),
        ("http://[::ffff:10.0.0.1]/v1", "private"),
        ("http://169.254.169.254/latest/meta-data", "link-local"),
        ("http://[fe80::1%25eth0]/", "link-local"),
        ("http://0.0.0.0:8000", "reserved"),
        ("http://224.0.0.1", "reserved"),
        ("http://judge.corp/v1", "private"),
        ("http://two.faced/v1", "private"),
        ("http://metadata.cloud", "link-local"),
        ("http://2852039166", "link-local"),
        ("http://0xA9FEA9FE/v1", "link-local"),
        ("http://169.254.43518", "link-local"),
        ("http://0251.0376.0251.0376", "link-local"),
        ("http://１６９.２５４.１６９.２５４", "link-local"),
        ("http://10。0。0。1", "private"),
        ("http://[64:ff9b::a9fe:a9fe]", "link-local"),
        ("http://[::169.254.169.254]", "link-local"),
        ("http://[2002:a9fe:a9fe::]", "link-local"),
        ("http://[2001:0:5ef5:79fd::f5ff:fffe]", "private"),
        ("http://[::]", "reserved"),
    ],
)
def test_private_networks_are_rejected_by_default(url: str, kind: str) -> None:
    with pytest.raises(BadInput) as caught:
        check(url)
    message = str(caught.value)
    assert f"is {kind}, and {VARIABLE} has only loopback,public" in message
    assert message.startswith("pools.judge.endpoint: ")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("url", "listed"),
    [
        ("http://10.1.2.3", "private"),
        ("http://10.1.2.3", "10.1.0.0/16"),
        ("http://10.1.2.3", " 10.1.2.3 , loopback"),
        ("http://[::ffff:10.1.2.3]", "10.1.0.0/16"),
        ("http://judge.corp/v1", "judge.corp"),
        ("http://JUDGE.corp./v1", "judge.corp"),
        ("http://judge.corp/v1", "*.corp"),
        ("http://169.254.169.254", "169.254.169.254"),
        ("https://api.example/v1", "api.example"),
    ],
)
def test_listed_hosts_are_allowed(url: str, listed: str) -> None:
    check(url, listed)


@pytest.mark.parametrize(
    ("url", "listed"),
    [
        ("http://localhost:8000", "public"),
        ("https://api.example", "loopback"),
        ("https://api.example", "other.example"),
        ("http://judge.corp", "*.other"),
        ("http://judge.corp", "udge.corp"),
        ("http://10.1.2.3", "10.2.0.0/16"),
        # A name that is listed does not lead to the cloud's own address.
        ("http://metadata.cloud", "metadata.cloud,private"),
        ("http://localhost:1", ""),
    ],
)
def test_a_list_replaces_the_default(url: str, listed: str) -> None:
    with pytest.raises(BadInput, match=VARIABLE):
        check(url, listed)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://api.example", "api.example/v1", "http://", ""])
def test_only_http_schemes_are_allowed(url: str) -> None:
    with pytest.raises(BadInput, match="http"):
        check(url)


def test_credentials_in_a_url_are_rejected_unshown() -> None:
    with pytest.raises(BadInput) as caught:
        check("https://me:hunter2@api.example/v1")
    assert "hunter2" not in str(caught.value)


def test_host_names_are_resolved_only_on_request() -> None:
    check("http://judge.corp/v1", look=False)
    with pytest.raises(BadInput, match="cannot be resolved"):
        check("http://gone.example/v1")
    with pytest.raises(OSError, match="not a valid host name"):
        look_up("a..b")


def test_default_hosts_apply_without_the_variable() -> None:
    assert allowed_hosts({}) == ("loopback", "public")
    assert allowed_hosts({VARIABLE: ""}) == ()


def test_loopback_is_recognised_without_resolution() -> None:
    assert [is_loopback(h) for h in ("localhost", "127.0.0.2", "::1", "10.0.0.1", "judge.corp")] == [True] * 3 + [
        False
    ] * 2


# --- clients and settings ----------------------------------------------------------------------


def test_reward_client_checks_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match=r"url: 'http://10\.0\.0\.5:8711': 10\.0\.0\.5 is private"):
        RewardClient("http://10.0.0.5:8711")
    monkeypatch.setenv(VARIABLE, "loopback,private")
    assert RewardClient("http://10.0.0.5:8711").url == "http://10.0.0.5:8711"


def test_pool_endpoint_host_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = PoolConfig(role="judge", prompt="judge.en", type="openai", endpoint="http://10.0.0.5:8000/v1")
    with pytest.raises(BadInput, match=r"pools\.judge\.endpoint.*10\.0\.0\.5 is private"):
        OpenAIScorer.check_config("judge", pool)
    monkeypatch.setenv(VARIABLE, "10.0.0.0/8")
    scorer = OpenAIScorer("judge", pool)
    # A redirect would lead where nothing was checked.
    assert scorer._client._client.follow_redirects is False
