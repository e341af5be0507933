"""Parts of hamr's HTTP servers: admission and limits of requests, the listening socket, the server."""

from __future__ import annotations

import asyncio
import base64
import secrets
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request

from hamr.errors import BadInput
from hamr.security.endpoints import is_loopback

if TYPE_CHECKING:
    from hamr.config.use import ServeConfig

DRAIN_S = 30
"""Maximum wait for requests in progress when a server is stopped."""
BACKLOG = 2048
"""Length of the queue of pending connections."""


class RefusedRequest(Exception):
    """An answer other than 200. `more`: further fields of its body."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        headers: Mapping[str, str] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.headers, self.more = status, headers, more or {}


def check_request(request: Request, token: str | None, source: str) -> None:
    """Refuse a request without the token, and one that a web page has made a browser send.

    `source`: the name of the variable that has the token.
    """
    if token is not None and not _carries(request.headers.get("authorization", ""), token):
        headers = {"WWW-Authenticate": "Bearer"}
        raise RefusedRequest(401, f"send the token of {source}: Authorization: Bearer", headers=headers)
    if "origin" in request.headers:
        raise RefusedRequest(403, "requests of web pages are not accepted")
    if token is None and not is_loopback(request.url.hostname or ""):
        # A name that its owner has pointed at this machine.
        raise RefusedRequest(403, f"the host is not this machine's own; set a token in {source}")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if request.method == "POST" and kind != "application/json":
        raise RefusedRequest(415, f"the content type is {kind or 'not given'}; send application/json")


async def read_body(request: Request, config: ServeConfig) -> bytes:
    """Return the body. Refuses one that is too large or too slow."""
    body = bytearray()
    try:
        async with asyncio.timeout(config.body_timeout_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > int(config.max_body_mb * 2**20):
                    limit = f"more than serve.max_body_mb={config.max_body_mb:g}; send less at a time, or raise it"
                    raise RefusedRequest(413, limit)
    except TimeoutError:
        late = f"the body did not arrive within serve.body_timeout_s={config.body_timeout_s:g}"
        raise RefusedRequest(408, late) from None
    return bytes(body)


def build_server(app: Any, config: ServeConfig) -> Any:
    """Return a uvicorn server without request logging."""
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=timed_protocol(config.header_timeout_s),
            log_level="warning",
            access_log=False,
            lifespan="off",
            # uvicorn rejects a request when this number of connections is reached, its own included.
            limit_concurrency=config.max_connections + 1,
            timeout_graceful_shutdown=DRAIN_S,
        )
    )


def timed_protocol(limit_s: float) -> Any:
    """Return uvicorn's HTTP protocol, which closes a connection whose headers do not arrive within the limit."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    class TimedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait_for_headers()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop_waiting()
            elif self._deadline is None:
                self._wait_for_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _wait_for_headers(self) -> None:
            self._deadline = self.loop.call_later(limit_s, self.transport.close)

        def _stop_waiting(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return TimedProtocol


def bind_socket(
    config: ServeConfig, key: str = "serve.port", remedy: str = "set serve.port or serve.host"
) -> socket.socket:
    """Return a socket bound to the address, where connections queue until a server runs.

    Raises:
        BadInput: The bind failed.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        # Not SO_REUSEPORT: a second server would silently take half of the requests.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(BACKLOG)  # two sockets may be bound to one port, but only one may listen
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no resolver takes
        where, reason = f"{config.host}:{config.port}", getattr(error, "strerror", None) or error
        raise BadInput(key, where, f"cannot be listened on ({reason}); {remedy}") from error
    return listener


def _carries(authorization: str, token: str) -> bool:
    """Return whether the header has the token: as a bearer token, or as the password of a login, as URLs have it."""
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).decode().partition(":")[2]
        except ValueError:
            return False
    elif scheme.lower() != "bearer":
        return False
    return secrets.compare_digest(given.strip().encode(), token.encode())
