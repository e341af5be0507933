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

import contextlib
import ipaddress
import os
import re
import socket
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import urlsplit

from hamr.errors import BadInput

VARIABLE = "HAMR_ALLOWED_HOSTS"
DEFAULT = "loopback,public"

_WITH_IPV4 = (ipaddress.IPv6Network("::/96"), ipaddress.IPv6Network("64:ff9b::/96"))
"""Networks whose last 32 bits are an IPv4 address: RFC 4291 and RFC 6052."""

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
    """Classify an address: loopback, link-local, reserved, public or private.

    An IPv6 address that contains an IPv4 address is classified by the latter.

    >>> kind_of(ipaddress.ip_address("::ffff:10.0.0.1")), kind_of(ipaddress.ip_address("169.254.169.254"))
    ('private', 'link-local')
    """
    address = _ipv4_inside(address)
    if address.is_loopback:
        return "loopback"
    if address.is_link_local:
        return "link-local"
    if address.is_unspecified or address.is_multicast:
        return "reserved"
    return "public" if address.is_global else "private"


def _ipv4_inside(address: Address) -> Address:
    """Return the IPv4 address that a mapped, compatible, translated (NAT64), 6to4 or Teredo address contains."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if any(address in network for network in _WITH_IPV4) and int(address) > 1:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else address)


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
    try:
        found = socket.getaddrinfo(host, None)
    except UnicodeError as error:
        raise OSError(f"is not a valid host name: {error}") from error
    return sorted({str(info[4][0]).partition("%")[0] for info in found})


def _addresses(where: str, url: str, host: str, resolve: Resolve | None) -> list[Address]:
    # What the resolver makes of a host: full-width digits and dots, numbers in octal or hexadecimal, fewer than four.
    host = unicodedata.normalize("NFKC", host).replace("\u3002", ".").rstrip(".")
    try:
        return [ipaddress.ip_address(host.partition("%")[0])]
    except ValueError:
        pass
    if re.fullmatch(r"[0-9a-fx.]+", host):
        with contextlib.suppress(OSError):
            return [ipaddress.IPv4Address(socket.inet_aton(host))]
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
    return _ipv4_inside(address) in network or address in network


def _matches(host: str, entry: str) -> bool:
    return host == entry or (entry.startswith("*.") and host.endswith(entry[1:]))
