"""Allow-list of hosts that hamr sends customers' dialogues and keys to. Standard library only.

The list belongs to the site, not to the experiment. It is the variable HAMR_ALLOWED_HOSTS, read where the connection is
made, so that a foreign configuration file cannot extend it. Its entries, separated by commas:

    loopback        this machine
    public          addresses that are routed on the internet
    private         those of local networks (10/8, 172.16/12, 192.168/16, fc00::/7 and other unrouted ones)
    10.1.0.0/16     a network, or one address
    judge.example   a host by its name, and `*.example` every host below a name

The default is `loopback,public`. Tests and first runs use a server on this machine, and anyone who can make a run
connect to it can already run code here. Private networks contain services that trust every client on the network, so
they have to be listed. Link-local addresses include the cloud's metadata service, which returns credentials, so they
have to be listed as a network.
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
    """Raise BadInput unless every address of the URL's host is allowed.

    Does not check that a name keeps its addresses.

    Args:
        where: Name of the setting.
        resolve: Resolves names to addresses. Without it a host given by name is not checked, which is right if another
            machine will make the connection.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise BadInput(where, url, f"is not a URL ({error})") from None
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
    """Return the entries of the allow-list."""
    given = (os.environ if environ is None else environ).get(VARIABLE, DEFAULT)
    return tuple(entry for entry in (part.strip().lower() for part in given.split(",")) if entry)


def kind_of(address: Address) -> str:
    """Classify an address: loopback, link-local, reserved, public or private. An IPv4-mapped IPv6 address is IPv4.

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
    """Return whether a host, given by name or address, is this machine. Does not resolve names."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return kind_of(ipaddress.ip_address(host)) == "loopback"
    except ValueError:
        return False


def look_up(host: str) -> list[str]:
    """Resolve a host to all of its addresses. Raises OSError."""
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
