"""`hamr serve`: the reward system over HTTP, for trainers in other processes or on other machines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any
from uuid import uuid4

from hamr.apps.score.reward_system import RewardSystem
from hamr.apps.serve.app import Routes
from hamr.config.schema import Config
from hamr.config.use import ServeConfig
from hamr.errors import BadInput, HamrError
from hamr.security.endpoints import is_loopback
from hamr.security.redaction import name_secret_variables
from hamr.telemetry.metrics import JsonlWriter

BACKLOG = 2048
"""Length of the queue of pending connections."""


def serve(config: Config, system: Callable[..., Any] = RewardSystem, **options: Any) -> None:
    """Serve until a stop signal. The port is bound before anything starts."""
    token = read_token(config.serve)
    with bind_socket(config.serve) as listener, _open_output(config.serve.records) as keep:
        host, port = listener.getsockname()[:2]
        # Group numbers restart at 1 with every start, but the records may go to one file.
        run = f"serve-{uuid4().hex[:8]}"
        with system(config, run=run, note=lambda line: print(line, flush=True), **options) as rewards:
            server = build_server(Routes(rewards, config.serve, keep, token=token), config.serve)
            print(f"serving on http://{host}:{port} (missing rewards: {config.serve.missing})", flush=True)
            with _catch_stop_signals():
                asyncio.run(server.serve(sockets=[listener]))
            if not server.started:
                raise HamrError(f"the server did not start on {host}:{port}")
            print("stopping", flush=True)


def read_token(config: ServeConfig) -> str | None:
    """Return the token that requests have to carry, or None. Raises BadInput for another address than loopback."""
    name_secret_variables([config.token_env])
    token = os.environ.get(config.token_env) or None
    if token is None and not is_loopback(config.host):
        remedy = f"other machines may connect; export a token as {config.token_env}, e.g. of `openssl rand -hex 32`"
        raise BadInput("serve.host", config.host, remedy)
    return token


def build_server(routes: Routes, config: ServeConfig) -> Any:
    """Return a uvicorn server without request logging."""
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            routes.app(),
            http=timed_protocol(config.header_timeout_s),
            log_level="warning",
            access_log=False,
            lifespan="off",
            limit_concurrency=config.max_connections,
            timeout_graceful_shutdown=int(config.drain_s) or 1,
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


@contextlib.contextmanager
def _catch_stop_signals() -> Iterator[None]:
    """Treat SIGTERM and Ctrl-C as the normal end of the body.

    uvicorn catches both, shuts down cleanly, and then raises the signal again; its default handler would kill the
    process.
    """

    def leave(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def bind_socket(config: ServeConfig) -> Iterator[socket.socket]:
    """Yield a socket bound to the address. Connections queue while the pools start. Raises BadInput if the bind
    fails."""
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
    except OSError as error:
        where = f"{config.host}:{config.port}"
        remedy = f"cannot be listened on ({error.strerror or error}); set serve.port or serve.host"
        raise BadInput("serve.port", where, remedy) from error
    with listener:
        yield listener


@contextlib.contextmanager
def _open_output(path: str | None) -> Iterator[Any]:
    if path is None:
        yield _discard
        return
    try:
        writer = JsonlWriter(path)
    except OSError as error:
        raise BadInput("serve.records", path, f"cannot be written: {error.strerror}") from error
    try:
        yield writer.write
    finally:
        writer.close()


def _discard(record: Mapping[str, Any]) -> None:
    """Discard the record, where no output is configured."""
