"""Policy endpoint: OpenAI's chat completions over the `ask` of dialogues, for agent harnesses in other processes.

    POST /<id>/v1/chat/completions   the next turn of the policy in conversation <id>
    POST /<id>/v1/reward             {"reward": 1.0, "turn_rewards": [0.0, 0.5]}: rewards of the conversation by name

Every conversation has a bearer token of its own. The messages are rendered by the model's chat template, as a server
for inference renders them. Sampling follows the configuration of the run: `temperature` and the like are ignored, and
what would change the form of the answer is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jinja2 import TemplateError
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hamr.config.use import ServeConfig
from hamr.data.samples import check_tool
from hamr.errors import BadInput, first_fault
from hamr.rollout.chat_completions import ChatRequest, completion, events, request_point
from hamr.security.functions import read_number
from hamr.security.http_server import RefusedRequest, bind_socket, build_server, check_request, read_body
from hamr.types import AskPolicy, EpisodeLimit, ServiceSample

BIND_REMEDY = "set an address of this machine"
_FIXED = ("literal_error", "none_required", "extra_forbidden")
"""Faults of fields that have one value here."""
NAME = re.compile(r"[a-z][a-z0-9_]*")
_LIMITS = {
    "context_full": ("context_length_exceeded", "the messages and the answer exceed model.max_context"),
    "max_turns": ("max_turns", "the conversation has rollout.max_turns turns"),
}


@dataclass(eq=False, kw_only=True)
class Conversation:
    """A dialogue as its harness sees it. `limit`: the first one that a turn met."""

    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    base_url: str
    ask: AskPolicy
    scored: ServiceSample | None = None
    """Sample of the dialogue, if the reward system scores the turns."""
    rewards: dict[str, float] = field(default_factory=dict)
    turn_rewards: tuple[float, ...] = ()
    limit: EpisodeLimit | None = None
    broken: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Has the exception of an engine, after which the conversation cannot continue."""
    calls: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    requests: set[asyncio.Task[Any]] = field(default_factory=set)

    async def turn(self, request: ChatRequest) -> dict[str, Any]:
        """Return the policy's next turn as a chat completion. The turns have an order, so they wait for each other."""
        tools = request.shown_tools
        async with self.lock:
            try:
                for n, tool in enumerate(tools):
                    check_tool(tool, f"tools[{n}]")
                messages = [message.as_dict() for message in request.messages]
                point = None if self.scored is None else request_point(self.scored, messages, tools)
                rollout = await self.ask(messages, tools=tools, point=point)
            except EpisodeLimit as limit:
                self.limit = self.limit or limit
                code, text = _LIMITS[limit.outcome]
                raise RefusedRequest(400, text, more={"code": code}) from None
            except (BadInput, TemplateError) as error:
                raise RefusedRequest(400, " ".join(str(error).split())) from None
            except Exception as error:
                if not self.broken.done():
                    self.broken.set_exception(error)
                raise RefusedRequest(500, f"{type(error).__name__}: {error}") from None
            answer = completion(rollout, request, first_call=self.calls + 1)
            self.calls += len(answer["choices"][0]["message"].get("tool_calls", ()))
        return answer

    def reward(self, given: Any) -> dict[str, Any]:
        """Keep the posted rewards. Refuses other values than numbers."""
        if not isinstance(given, dict) or not given:
            raise RefusedRequest(400, 'post an object of names and numbers, such as {"reward": 1.0}')
        given = dict(given)
        turns = given.pop("turn_rewards", None)
        if turns is not None and not (isinstance(turns, list) and None not in map(read_number, turns)):
            raise RefusedRequest(400, "turn_rewards is not a list of numbers up to 1e6 in size; give one for each turn")
        for name, value in given.items():
            if not NAME.fullmatch(name) or read_number(value) is None:
                shown = json.dumps({name: value})[:200]
                raise RefusedRequest(400, f"{shown}: a reward is a number up to 1e6 in size, its name lower case")
        self.rewards |= {name: float(value) for name, value in given.items()}
        self.turn_rewards = self.turn_rewards if turns is None else tuple(map(float, turns))
        return {"rewards": self.rewards, "turn_rewards": list(self.turn_rewards)}


class PolicyEndpoint:
    """HTTP server of the open conversations, in the event loop that holds the dialogues.

    `config` has the address and the limits of requests.
    """

    def __init__(self, config: ServeConfig) -> None:
        self._config = config
        self._open: dict[str, Conversation] = {}
        self._url = ""
        self._serving: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def conversation(self, ask: AskPolicy, scored: ServiceSample | None = None) -> Iterator[Conversation]:
        """Open a conversation. The first one starts the server, which lasts until its event loop ends."""
        if self._serving is None or self._serving.done():
            self._serving = self._start()
        identity = secrets.token_hex(8)
        one = self._open[identity] = Conversation(base_url=f"{self._url}/{identity}/v1", ask=ask, scored=scored)
        try:
            yield one
        finally:
            del self._open[identity]
            for request in tuple(one.requests):  # of a dialogue that was aborted
                request.cancel()

    def app(self) -> Starlette:
        async def turn(one: Conversation, body: bytes) -> Mapping[str, Any] | Response:
            request = ChatRequest.model_validate_json(body)
            answer = await one.turn(request)
            return Response(events(answer, request), media_type="text/event-stream") if request.stream else answer

        async def reward(one: Conversation, body: bytes) -> dict[str, Any]:
            return one.reward(json.loads(body))

        return Starlette(
            routes=[
                Route("/{id}/v1/chat/completions", self._route(turn), methods=["POST"]),
                Route("/{id}/v1/reward", self._route(reward), methods=["POST"]),
            ]
        )

    def _start(self) -> asyncio.Task[None]:
        listener = bind_socket(self._config, "env.command.host", BIND_REMEDY)
        host, port = listener.getsockname()[:2]
        self._url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        server = build_server(self.app(), self._config)
        server.capture_signals = contextlib.nullcontext  # signals belong to the run

        async def serve() -> None:
            with listener, contextlib.suppress(asyncio.CancelledError):
                await server.serve(sockets=[listener])

        return asyncio.create_task(serve())

    def _route(
        self, handle: Callable[[Conversation, bytes], Awaitable[Mapping[str, Any] | Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return a route whose errors have the form of OpenAI's."""

        async def respond(request: Request) -> Response:
            try:
                one = self._open.get(request.path_params["id"])
                # The same answer to an unknown id and to a wrong token.
                check_request(request, one.token if one else secrets.token_hex(), "OPENAI_API_KEY")
                assert one is not None, "no request has the token of an unknown conversation"
                task = asyncio.current_task()
                assert task is not None, "uvicorn runs each request as a task"
                one.requests.add(task)
                watch: asyncio.Task[None] | None = None
                try:
                    body = await read_body(request, self._config)
                    watch = asyncio.create_task(_cancel_at_disconnect(task, request))
                    answer = await handle(one, body)
                    return answer if isinstance(answer, Response) else JSONResponse(answer)
                finally:
                    one.requests.discard(task)
                    if watch is not None:
                        watch.cancel()
            except RefusedRequest as refused:
                return _error(refused.status, str(refused), refused.headers, **refused.more)
            except ValidationError as error:
                fixed = error.errors(include_input=False, include_url=False)[0]["type"] in _FIXED
                return _error(400, first_fault(error) + ("; the policy endpoint has nothing else" if fixed else ""))
            except (ValueError, RecursionError) as error:
                return _error(400, f"the body is not JSON ({error})")
            except (ClientDisconnect, asyncio.CancelledError):
                return Response(status_code=499)

        return respond


async def _cancel_at_disconnect(task: asyncio.Task[Any], request: Request) -> None:
    """Cancel the task of a request when its client is gone: a client that tries again gets the turn only once."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    task.cancel()


def _error(status: int, message: str, headers: Mapping[str, str] | None = None, code: str | None = None) -> Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return JSONResponse(body, status, headers)
