"""Which hosts hamr sends customers' dialogues and keys to. Standard library only.

The list is the site's, not the experiment's: the variable HAMR_ALLOWED_HOSTS, read where the connection is made, so
that no configuration file that came from somewhere else can lengthen it. Its entries, with commas between them:

    loopback        this machine
    public          addresses that are routed on the internet
    private         those of local networks (10/8, 172.16/12, 192.168/16, fc00::/7 and what else is not routed)
    10.1.0.0/16     a network, or one address
    judge.example   a host by its name, and `*.example` every host below a name

Unset, it is `loopback,public`: a server on this machine is what a test and a first try use, and whoever can make a run
connect to it can already run code here. Private networks hold services that trust whoever reaches them, and link-local
addresses the cloud's own, which hand out credentials: the former have to be listed, and the latter as a network.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

from hamr.errors import BadInput

VARIABLE = "HAMR_ALLOWED_HOSTS"
DEFAULT = "loopback,public"

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str], Sequence[str]]


def check_url(
    where: str, url: str, *, environ: Mapping[str, str] | None = None, resolve: Resolve | None = None
) -> None:
    """Raises BadInput unless every address that the URL's host has is allowed.

    `where` names the setting. `resolve`: names to addresses; without it a host given by its name is not looked at,
    which is right where the connection will be made from another machine. That a name keeps its addresses is not
    checked.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise BadInput(where, url, f"is no URL ({error})") from None
    if parts.username is not None or parts.password is not None:
        raise BadInput(
            where, "(a URL with a login)", "put no name or password into a URL; keys come from the environment"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadInput(where, url, "give an address that begins with http:// or https://")
    host = parts.hostname.rstrip(".").lower()
    listed = allowed_hosts(environ)
    for address in _addresses(where, url, host, resolve):
        kind = kind_of(address)
        if kind in listed or any(_inside(address, entry) for entry in listed):
            continue
        if kind != "link-local" and any(_matches(host, entry) for entry in listed):
            continue
        shown = host if host == str(address) else f"{host} ({address})"
        raise BadInput(
            where,
            url,
            f"{shown} is {kind}, and {VARIABLE} has only {','.join(listed)}; list the host or its network there if it "
            "may be sent customers' dialogues",
        )


def allowed_hosts(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The entries in force."""
    given = (os.environ if environ is None else environ).get(VARIABLE, DEFAULT)
    return tuple(entry for entry in (part.strip().lower() for part in given.split(",")) if entry)


def kind_of(address: Address) -> str:
    """loopback, link-local, reserved, public or private. An IPv6 address that stands for an IPv4 one is that one.

    >>> kind_of(ipaddress.ip_address("::ffff:10.0.0.1")), kind_of(ipaddress.ip_address("169.254.169.254"))
    ('private', 'link-local')
    """
    mapped = getattr(address, "ipv4_mapped", None)
    if mapped is not None:
        return kind_of(mapped)
    if address.is_loopback:
        return "loopback"
    if address.is_link_local:
        return "link-local"
    if address.is_unspecified or address.is_multicast:
        return "reserved"
    return "public" if address.is_global else "private"


def is_loopback(host: str) -> bool:
    """Whether a host as it is written, by name or address, is this machine. No name is looked up."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return kind_of(ipaddress.ip_address(host)) == "loopback"
    except ValueError:
        return False


def look_up(host: str) -> list[str]:
    """Every address of a host, as the system resolves it. Raises OSError."""
    return sorted({str(info[4][0]).partition("%")[0] for info in socket.getaddrinfo(host, None)})


def _addresses(where: str, url: str, host: str, resolve: Resolve | None) -> list[Address]:
    try:
        return [ipaddress.ip_address(host.partition("%")[0])]
    except ValueError:
        pass
    if host == "localhost":
        return [ipaddress.ip_address("127.0.0.1")]
    if resolve is None:
        return []
    try:
        return [ipaddress.ip_address(found) for found in resolve(host)]
    except OSError as error:
        raise BadInput(where, url, f"the host {host} cannot be resolved ({error}); correct it") from None


def _inside(address: Address, entry: str) -> bool:
    try:
        network = ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None) or address
    return mapped in network


def _matches(host: str, entry: str) -> bool:
    return host == entry or (entry.startswith("*.") and host.endswith(entry[1:]))
