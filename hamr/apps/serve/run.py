"""`hamr serve`: the reward system over HTTP, for trainers in other processes or on other machines."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any
from uuid import uuid4

from hamr.apps.score.reward_system import RewardSystem
from hamr.apps.serve.app import Routes
from hamr.cascade.auditors import check_pool_auditor
from hamr.config.schema import Config
from hamr.config.use import ServeConfig
from hamr.errors import BadInput, HamrError
from hamr.files import JsonlWriter
from hamr.security.endpoints import is_loopback
from hamr.security.http_server import bind_socket, build_server
from hamr.security.redaction import name_secret_variables


def serve(config: Config, system: Callable[..., Any] = RewardSystem, **options: Any) -> None:
    """Serve until a stop signal. The port is bound before anything starts."""
    check_pool_auditor(config.rewards.consistency)
    token = read_token(config.serve)
    with bind_socket(config.serve) as listener, _open_output(config.serve.records) as keep:
        host, port = listener.getsockname()[:2]
        # Group numbers restart at 1 with every start, but the records may go to one file.
        run = f"serve-{uuid4().hex[:8]}"
        with system(config, run=run, note=lambda line: print(line, flush=True), **options) as rewards:
            server = build_server(Routes(rewards, config.serve, keep, token=token).app(), config.serve)
            address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            print(f"serving on http://{address} (missing rewards: {config.serve.missing})", flush=True)
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
def _open_output(path: str | None) -> Iterator[Any]:
    if path is None:
        yield lambda record: None
        return
    try:
        writer = JsonlWriter(path)
    except OSError as error:
        raise BadInput("serve.records", path, f"cannot be written: {error.strerror}") from error
    with contextlib.closing(writer):
        yield writer.write
