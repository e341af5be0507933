"""`hamr serve`: the reward system behind HTTP, for trainers that live elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any
from uuid import uuid4

from hamr.apps.score.reward_system import RewardSystem
from hamr.apps.serve.app import Routes
from hamr.config.load import load_config
from hamr.config.schema import Config
from hamr.config.use import ServeConfig
from hamr.errors import BadInput, HamrError
from hamr.telemetry.metrics import JsonlWriter

HELP = "serves the reward system over HTTP: OpenRLHF's remote reward, a client for TRL and verl, full records"

BACKLOG = 2048
"""Connections that wait to be taken up."""


def main(args: list[str]) -> int:
    """Takes overrides like every job; `serve.*` has the address, and what is said of a reward that is missing.

    POST /score       {"groups": [{"sample": {...}, "responses": [...]}]} -> rewards and full records by group
    POST /get_reward  OpenRLHF's remote reward model: {"query", "prompts", "labels"} -> {"rewards", "scores"}
    GET  /health      200 while every pool has a replica that runs

    Clients should wait longer than `router.deadline_s`, after which a response that is stuck is a failure: OpenRLHF
    waits 180 s, so set router.deadline_s=120 for it. SIGTERM or Ctrl-C ends the server when what is under way is done.
    """
    serve(load_config(args))
    return 0


def serve(config: Config, system: Callable[..., Any] = RewardSystem, **options: Any) -> None:
    """Runs until it is told to stop. The port is taken before anything starts."""
    with bind_socket(config.serve) as listener, _open_output(config.serve.records) as keep:
        host, port = listener.getsockname()[:2]
        # Groups are numbered from 1 again with every start: their records may go to one file.
        run = f"serve-{uuid4().hex[:8]}"
        with system(config, run=run, note=lambda line: print(line, flush=True), **options) as rewards:
            server = build_server(Routes(rewards, config.serve, keep), config.serve)
            print(f"serving on http://{host}:{port} (missing rewards: {config.serve.missing})", flush=True)
            with _told_to_stop():
                asyncio.run(server.serve(sockets=[listener]))
            if not server.started:
                raise HamrError(f"the server did not start on {host}:{port}")
            print("stopping", flush=True)


def build_server(routes: Routes, config: ServeConfig) -> Any:
    """uvicorn, quiet about requests."""
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            routes.app(),
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=int(config.drain_s) or 1,
        )
    )


@contextlib.contextmanager
def _told_to_stop() -> Iterator[None]:
    """SIGTERM and Ctrl-C as the ordinary end of the body. uvicorn catches both, stops in good order, and then raises
    the signal again for whoever is outside of it, whose default would be to kill the process."""

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
    """A socket that holds the address. Who connects while the pools still start waits in its queue. Raises BadInput
    when the address cannot be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        # Not SO_REUSEPORT: a second server would silently take half of the requests.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
            listener.listen(BACKLOG)  # two sockets may be bound to one port; only one may listen
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
        yield _forget
        return
    try:
        writer = JsonlWriter(path)
    except OSError as error:
        raise BadInput("serve.records", path, f"cannot be written: {error.strerror}") from error
    try:
        yield writer.write
    finally:
        writer.close()


def _forget(record: Mapping[str, Any]) -> None:
    """Nobody asked for the records."""
