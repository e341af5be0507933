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
import math
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from jinja2 import TemplateError
from pydantic import AfterValidator, BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hamr.config.use import ServeConfig
from hamr.data.actions import parse_action, parse_arguments
from hamr.errors import BadInput
from hamr.security.http_server import RefusedRequest, bind_socket, build_server, check_request, read_body
from hamr.types import AskPolicy, EpisodeLimit, MalformedResponse, Rollout, ServiceSample, ToolCall, Turn

NAME = re.compile(r"[a-z][a-z0-9_]*")
_CALL = re.compile(r"<tool_call>.*?</tool_call>", re.DOTALL)
_LIMITS = {
    "context_full": ("context_length_exceeded", "the messages and the answer exceed model.max_context"),
    "max_turns": ("max_turns", "the conversation has rollout.max_turns turns"),
}


class _Part(BaseModel):
    type: Literal["text"]
    text: str


def _check_arguments(text: str) -> str:
    if isinstance(parse_arguments(text), MalformedResponse):
        raise ValueError("the arguments of a call are the text of a JSON object")
    return text.strip() or "{}"


class _Function(BaseModel):
    name: str
    arguments: Annotated[str, AfterValidator(_check_arguments)] = "{}"


class _Call(BaseModel):
    id: str = ""
    type: Literal["function"] = "function"
    function: _Function


class _Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the message as chat templates expect it, with one text as content."""
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        role = "system" if self.role == "developer" else self.role
        return {**self.model_dump(exclude_none=True), "role": role, "content": text}


class _ToolFunction(BaseModel, extra="allow"):
    name: str
    description: str | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)


class _Tool(BaseModel):
    type: Literal["function"] = "function"
    function: _ToolFunction


class _StreamOptions(BaseModel):
    include_usage: bool = False


class _ChatRequest(BaseModel):
    """Fields that change the form of the answer have only the values that the endpoint supports."""

    model: str = "policy"
    messages: list[_Message] = Field(min_length=1)
    tools: list[_Tool] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    n: Literal[1] | None = None
    logprobs: Literal[False] | None = None
    functions: None = None
    response_format: dict[Literal["type"], Literal["text"]] | None = None


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

    async def turn(self, request: _ChatRequest) -> dict[str, Any]:
        """Return the policy's next turn as a chat completion. The turns have an order, so they wait for each other."""
        tools = () if request.tool_choice == "none" else tuple(t.model_dump() for t in request.tools or ())
        async with self.lock:
            try:
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
        return self._completion(rollout, request.model, bool(tools))

    def _completion(self, rollout: Rollout, model: str, has_tools: bool) -> dict[str, Any]:
        content, calls = read_calls(rollout.text) if has_tools else (rollout.text, [])
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if calls:
            message["tool_calls"] = [self._call(call) for call in calls]
        finish = "length" if rollout.finish_reason == "length" else "tool_calls" if calls else "stop"
        asked, sampled = len(rollout.prompt_ids), len(rollout.token_ids)
        return {
            "id": f"chatcmpl-{rollout.key.turn}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
            "usage": {"prompt_tokens": asked, "completion_tokens": sampled, "total_tokens": asked + sampled},
        }

    def _call(self, call: ToolCall) -> dict[str, Any]:
        self.calls += 1
        arguments = json.dumps(dict(call.parameters), ensure_ascii=False)
        function = {"name": call.name, "arguments": arguments}
        return {"id": f"call{self.calls:05d}", "type": "function", "function": function}

    def reward(self, given: Any) -> dict[str, Any]:
        """Keep the posted rewards. Refuses other values than numbers."""
        if not isinstance(given, dict) or not given:
            raise RefusedRequest(400, 'post an object of names and numbers, such as {"reward": 1.0}')
        given = dict(given)
        turns = given.pop("turn_rewards", None)
        if turns is not None and not (isinstance(turns, list) and all(map(_is_number, turns))):
            raise RefusedRequest(400, "turn_rewards is no list of finite numbers; give one for each turn")
        for name, value in given.items():
            if not NAME.fullmatch(name) or not _is_number(value):
                shown = json.dumps({name: value})[:200]
                raise RefusedRequest(400, f"{shown}: a reward is a finite number, its name lower case")
        self.rewards |= {name: float(value) for name, value in given.items()}
        self.turn_rewards = self.turn_rewards if turns is None else tuple(map(float, turns))
        return {"rewards": self.rewards, "turn_rewards": list(self.turn_rewards)}


def request_point(
    sample: ServiceSample, messages: Sequence[Mapping[str, Any]], tools: tuple[Mapping[str, Any], ...]
) -> ServiceSample:
    """Return the sample with the conversation of a request, as scorers see it."""
    policy, history, names = list[str](), list[Turn](), dict[str, str]()
    for message in messages:
        role, text = message["role"], message["content"]
        if role == "system":
            policy.append(text)
        elif role == "tool":
            name = message.get("name") or names.get(message.get("tool_call_id", ""))
            history.append(Turn(role="tool", name=name, content=text))
        elif text:
            history.append(Turn(role="agent" if role == "assistant" else "customer", content=text))
        for call in message.get("tool_calls", ()):
            function = call["function"]
            names[call["id"]] = function["name"]
            called = ToolCall(name=function["name"], parameters=json.loads(function["arguments"]))
            history.append(Turn(role="agent", tool_call=called))
    return replace(sample, policy="\n".join(policy), tools=tools, history=tuple(history))


def read_calls(text: str) -> tuple[str | None, list[ToolCall]]:
    """Return the text before the tool calls of a response, None if there is none, and the calls.

    A response with a malformed call is a text, as in servers for inference.

    >>> read_calls('Wait.<tool_call>{"name": "find", "arguments": {"n": 7}}</tool_call>')
    ('Wait.', [ToolCall(name='find', parameters={'n': 7})])
    """
    found = [parse_action(call) for call in _CALL.findall(text)]
    calls = [call for call in found if isinstance(call, ToolCall)]
    if not calls or len(calls) < len(found):
        return text, []
    return text[: text.index("<tool_call>")].strip() or None, calls


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
            request = _ChatRequest.model_validate_json(body)
            answer = await one.turn(request)
            return _events(answer, request.stream_options) if request.stream else answer

        async def reward(one: Conversation, body: bytes) -> dict[str, Any]:
            return one.reward(json.loads(body))

        return Starlette(
            routes=[
                Route("/{id}/v1/chat/completions", self._route(turn), methods=["POST"]),
                Route("/{id}/v1/reward", self._route(reward), methods=["POST"]),
            ]
        )

    def _start(self) -> asyncio.Task[None]:
        listener = bind_socket(self._config, "env.command.host", "set an address of this machine")
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
                try:
                    answer = await handle(one, await read_body(request, self._config))
                    return answer if isinstance(answer, Response) else JSONResponse(answer)
                finally:
                    one.requests.discard(task)
            except RefusedRequest as refused:
                return _error(refused.status, str(refused), refused.headers, **refused.more)
            except ValidationError as error:
                return _error(400, _describe(error))
            except ValueError as error:
                return _error(400, f"the body is not JSON ({error})")
            except (ClientDisconnect, asyncio.CancelledError):
                return Response(status_code=499)

        return respond


def _events(answer: Mapping[str, Any], options: _StreamOptions | None) -> Response:
    """Return a chat completion as a stream of events, which has the whole turn in one."""
    [choice] = answer["choices"]
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(delta["tool_calls"])]
    last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    parts: list[dict[str, Any]] = [{"choices": [{**last, "delta": delta, "finish_reason": None}]}, {"choices": [last]}]
    if options is not None and options.include_usage:
        parts.append({"choices": [], "usage": answer["usage"]})
    same = {**{key: answer[key] for key in ("id", "created", "model")}, "object": "chat.completion.chunk"}
    lines = [*(json.dumps(same | part) for part in parts), "[DONE]"]
    return Response("".join(f"data: {line}\n\n" for line in lines), media_type="text/event-stream")


def _describe(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}; the policy endpoint has nothing else"


def _error(status: int, message: str, headers: Mapping[str, str] | None = None, code: str | None = None) -> Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return JSONResponse(body, status, headers)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
