"""Routes of `hamr serve`, as an ASGI application over any scoring service."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Protocol

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from hamr import __version__
from hamr.adapters.groups import Group, RewardMissing
from hamr.adapters.wire import Told, read_get_reward, read_object, read_score, tell_get_reward, tell_score
from hamr.apps.serve.openapi import describe
from hamr.config.use import ServeConfig
from hamr.data.samples import from_json
from hamr.errors import BadInput, HamrError
from hamr.security.endpoints import is_loopback
from hamr.telemetry.record_json import record_to_dict
from hamr.types import Failure, RewardRecord, ServiceSample

log = logging.getLogger(__name__)

BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
"""Upper bounds of the durations in /metrics, in seconds."""
HEALTH_S = 10.0
"""Longest wait for the state of the pools, in seconds."""

Handler = Callable[[Request], Awaitable[Mapping[str, Any] | Response]]


class ScoringService(Protocol):
    """Interface of RewardSystem, or of a test double."""

    async def ascore(self, samples: Sequence[tuple[ServiceSample, Sequence[str]]], /) -> list[RewardRecord]: ...

    async def health(self) -> dict[str, Any]: ...


class Routes:
    """State shared by the routes.

    `keep` is called with every record that was served. Requests have to carry the `token`, if there is one.
    """

    def __init__(
        self,
        system: ScoringService,
        config: ServeConfig,
        keep: Callable[[Mapping[str, Any]], None] = lambda record: None,
        *,
        token: str | None = None,
    ) -> None:
        self._system, self._config, self._keep, self._token = system, config, keep, token
        self.requests = self.responses = self.failed = 0
        self._registry = registry = CollectorRegistry()
        self._seconds = Histogram(
            "hamr_serve_request_seconds",
            "Duration of requests",
            ("route", "status"),
            buckets=BUCKETS_S,
            registry=registry,
        )
        self._scored = Counter("hamr_serve_responses", "Responses that were scored", registry=registry)
        self._unscored = Counter(
            "hamr_serve_unscored_responses", "Responses that could not be scored", ("failure",), registry=registry
        )

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/score", self._route(self._score), methods=["POST"]),
                Route("/get_reward", self._route(self._get_reward), methods=["POST"]),
                Route("/health", self._route(self._health), methods=["GET"]),
                Route("/metrics", self._route(self._metrics), methods=["GET"]),
                Route("/openapi.json", self._route(self._openapi), methods=["GET"]),
            ]
        )

    async def _score(self, request: Request) -> Mapping[str, Any]:
        groups = read_score(await self._body(request))
        names = [f"groups[{i}].sample" for i in range(len(groups))]
        return tell_score(await self._score_groups(groups, names))

    async def _get_reward(self, request: Request) -> Mapping[str, Any]:
        groups = read_get_reward(await self._body(request), self._config.end_texts)
        firsts = accumulate((len(responses) for _, responses in groups), initial=0)
        names = [f"labels[{first}]" for first in firsts][:-1]
        return tell_get_reward(await self._score_groups(groups, names), self._config.missing)

    async def _health(self, request: Request) -> Mapping[str, Any]:
        async with asyncio.timeout(HEALTH_S):
            pools = await self._system.health()
        counts = {"requests": self.requests, "responses": self.responses, "failed": self.failed}
        said = {"version": __version__, "pools": pools, **counts}
        down = sorted(name for name, pool in pools.items() if not pool["running"])
        if down:
            raise _Answer(503, {"error": f"no replica is running of: {', '.join(down)}", **said})
        return {"status": "ok", **said}

    async def _metrics(self, request: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def _openapi(self, request: Request) -> Mapping[str, Any]:
        return describe()

    async def _score_groups(self, groups: Sequence[Group], names: Sequence[str]) -> Told:
        """Score the groups. `names`: the request's name of each group's sample."""
        self.requests += 1
        read = [
            (from_json(dict(sample), where=name), texts) for (sample, texts), name in zip(groups, names, strict=True)
        ]
        records = await self._system.ascore(read)
        told = [record_to_dict(record) for record in records]
        for record in told:
            self._keep(record)
        values = [None if isinstance(r.total, Failure) else r.total.value for r in records]
        self.responses += len(values)
        self.failed += sum(value is None for value in values)
        for outcome in (record.total for record in records):
            if isinstance(outcome, Failure):
                self._unscored.labels(outcome.kind).inc()
            else:
                self._scored.inc()
        rest = iter(values)
        return [[next(rest) for _ in responses] for _, responses in groups], told

    async def _body(self, request: Request) -> dict[str, Any]:
        most = int(self._config.max_body_mb * 2**20)
        body = bytearray()
        try:
            async with asyncio.timeout(self._config.body_timeout_s):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > most:
                        limit = (
                            f"more than serve.max_body_mb={self._config.max_body_mb:g}; send fewer groups, or raise it"
                        )
                        raise _Answer(413, {"error": limit})
        except TimeoutError:
            late = f"the body did not arrive within serve.body_timeout_s={self._config.body_timeout_s:g}"
            raise _Answer(408, {"error": late}) from None
        return read_object(bytes(body))

    def _admit(self, request: Request) -> None:
        """Raise the answer to a request without the token, or to one that a web page has made a browser send."""
        if self._token is not None and not _carries(request.headers.get("authorization", ""), self._token):
            told = {"WWW-Authenticate": "Bearer"}
            raise _Answer(401, {"error": f"send the token of {self._config.token_env}: Authorization: Bearer"}, told)
        if "origin" in request.headers:
            raise _Answer(403, {"error": "requests of web pages are not accepted"})
        if self._token is None and not is_loopback(request.url.hostname or ""):
            # A name that its owner has pointed at this machine.
            raise _Answer(
                403, {"error": f"the host is not this machine's own; set a token in {self._config.token_env}"}
            )
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if request.method == "POST" and kind != "application/json":
            raise _Answer(415, {"error": f"the content type is {kind or 'not given'}; send application/json"})

    def _route(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Convert every outcome to JSON: a request error is 400 with its field, a missing reward 503."""

        async def answer(request: Request) -> Response:
            begun = time.monotonic()
            response = await respond(request)
            self._seconds.labels(request.url.path, str(response.status_code)).observe(time.monotonic() - begun)
            return response

        async def respond(request: Request) -> Response:
            try:
                self._admit(request)
                answered = await handler(request)
                return answered if isinstance(answered, Response) else _json(200, answered)
            except _Answer as error:
                return _json(error.status, error.body, error.headers)
            except BadInput as error:
                return _json(400, {"error": str(error), "field": error.where})
            except RewardMissing as error:
                return _json(503, {"error": str(error), "failures": list(error.failures)}, {"Retry-After": "1"})
            except TimeoutError:
                return _json(503, {"error": f"the pools did not report their state within {HEALTH_S:g} s"})
            except HamrError as error:
                return _json(500, {"error": str(error)})
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as error:
                log.exception("%s %s", request.method, request.url.path)
                return _json(500, {"error": f"{type(error).__name__}: {error}"})

        return answer


class _Answer(Exception):
    """A response other than 200, raised by a handler."""

    def __init__(self, status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status)
        self.status, self.body, self.headers = status, body, headers


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


def _json(status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    # NaN is not valid JSON, but `missing: nan` promises it, and Python's own parser reads it.
    return Response(json.dumps(body), status, headers, "application/json")
