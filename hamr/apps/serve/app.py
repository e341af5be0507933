"""Routes of `hamr serve`, as an ASGI application over any scoring service."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import yaml
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from hamr import __version__
from hamr.adapters.groups import RewardMissing, SampleResponses
from hamr.adapters.wire import ScoredGroups, read_get_reward, read_object, read_score, tell_get_reward, tell_score
from hamr.config.use import ServeConfig
from hamr.data.samples import from_json
from hamr.errors import BadInput, HamrError
from hamr.security.http_server import RefusedRequest, check_request, read_body
from hamr.security.redaction import redact_text
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
        groups = read_get_reward(await self._body(request))
        firsts = accumulate((len(responses) for _, responses in groups), initial=0)
        names = [f"labels[{first}]" for first in firsts][:-1]
        return tell_get_reward(await self._score_groups(groups, names), self._config.missing)

    async def _health(self, request: Request) -> Mapping[str, Any]:
        async with asyncio.timeout(HEALTH_S):
            pools = await self._system.health()
        counts = {"requests": self.requests, "responses": self.responses, "failed": self.failed}
        body = {"version": __version__, "pools": pools, **counts}
        down = sorted(name for name, pool in pools.items() if not pool["running"])
        if down:
            raise RefusedRequest(503, f"no replica is running of: {', '.join(down)}", more=body)
        return {"status": "ok", **body}

    async def _metrics(self, request: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def _openapi(self, request: Request) -> Mapping[str, Any]:
        return _openapi_document()

    async def _score_groups(self, groups: Sequence[SampleResponses], names: Sequence[str]) -> ScoredGroups:
        """Score the groups. `names`: the request's name of each group's sample."""
        self.requests += 1
        read = [
            (from_json(dict(sample), where=name), texts) for (sample, texts), name in zip(groups, names, strict=True)
        ]
        records = await self._system.ascore(read)
        entries = [record_to_dict(record) for record in records]
        for record in entries:
            self._keep(record)
        values = [record.reward for record in records]
        self.responses += len(values)
        self.failed += sum(value is None for value in values)
        for outcome in (record.total for record in records):
            if isinstance(outcome, Failure):
                self._unscored.labels(outcome.kind).inc()
            else:
                self._scored.inc()
        rest = iter(values)
        return [[next(rest) for _ in responses] for _, responses in groups], entries

    async def _body(self, request: Request) -> dict[str, Any]:
        return read_object(await read_body(request, self._config))

    def _route(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """Convert every outcome to JSON: a request error is 400 with its field, a missing reward 503."""

        async def answer(request: Request) -> Response:
            begun = time.monotonic()
            response = await respond(request)
            self._seconds.labels(request.url.path, str(response.status_code)).observe(time.monotonic() - begun)
            return response

        async def respond(request: Request) -> Response:
            try:
                check_request(request, self._token, self._config.token_env)
                answered = await handler(request)
                return answered if isinstance(answered, Response) else _json(200, answered)
            except RefusedRequest as error:
                return _json(error.status, {"error": str(error), **error.more}, error.headers)
            except BadInput as error:
                return _json(400, {"error": str(error), "field": error.where})
            except RewardMissing as error:
                return _json(503, {"error": str(error), "failures": list(error.failures)}, {"Retry-After": "1"})
            except TimeoutError:
                return _json(503, {"error": f"the pools did not report their state within {HEALTH_S:g} s"})
            except HamrError as error:
                return _json(500, {"error": redact_text(str(error))})
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as error:
                log.error("%s %s\n%s", request.method, request.url.path, redact_text(traceback.format_exc()))
                return _json(500, {"error": redact_text(f"{type(error).__name__}: {error}")})

        return answer


@cache
def _openapi_document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 description, for clients in other languages."""
    document = yaml.safe_load(Path(__file__).with_name("openapi.yaml").read_text(encoding="utf-8"))
    document["info"]["version"] = __version__
    return document


def _json(status: int, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    # NaN is not valid JSON, but `missing: nan` promises it, and Python's own parser reads it.
    return Response(json.dumps(body), status, headers, "application/json")
