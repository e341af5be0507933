"""The policy endpoint over a scripted `ask`, and harness processes over a scripted engine."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from jinja2 import TemplateError

from hamr.config.custom import HarnessConfig
from hamr.config.load import dump_config, load_config, load_dumped
from hamr.config.use import ServeConfig
from hamr.data.rendering import dialogue_text
from hamr.errors import BadInput, ConfigError, EngineDied
from hamr.rollout.chat_completions import request_point
from hamr.rollout.endpoint import Conversation, PolicyEndpoint
from hamr.rollout.harness import HarnessEpisode, check_harness
from hamr.security.processes import start_time
from hamr.types import EpisodeLimit, FunctionFailed, FunctionTimeout, Rollout, SampleKey, VersionSpan
from tests.factories import sample
from tests.unit.rollout.test_episodes import Engine, controller, runner

FIND = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
HELLO = [{"role": "user", "content": "hello"}]


class Policy:
    """Scripted `ask`: answers with `texts` in turn, or raises one that is an exception."""

    def __init__(self, *texts: str | Exception) -> None:
        self.texts = list(texts)
        self.asked: list[tuple[list[dict[str, Any]], tuple[Any, ...]]] = []

    async def __call__(self, messages, *, tools=(), score=True, point=None) -> Rollout:
        await asyncio.sleep(0)
        turn = len(self.asked)
        self.asked.append((messages, tools))
        text = self.texts[turn]
        if isinstance(text, Exception):
            raise text
        key = SampleKey(run="r", step=0, prompt="s", sample=0, turn=turn)
        span = (VersionSpan(version=0, start=0, end=2),)
        return Rollout(
            key=key, prompt_ids=(1, 2, 3), token_ids=(4, 5), logprobs=(-0.1, -0.2), text=text, finish_reason="stop",
            versions=span,
        )  # fmt: skip


@pytest.fixture
def endpoint() -> PolicyEndpoint:
    return PolicyEndpoint(ServeConfig(port=0, max_body_mb=0.01))


def client(one: Conversation) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=one.base_url, api_key=one.token, max_retries=0)


async def post(one: Conversation, path: str, body: Any, token: str = "", **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as http:
        headers = {"Authorization": f"Bearer {token or one.token}", "Content-Type": "application/json", **headers}
        content = body if isinstance(body, str) else json.dumps(body)
        return await http.post(f"{one.base_url}{path}", content=content, headers=headers)


async def test_conversations_are_told_apart_by_their_url(endpoint: PolicyEndpoint) -> None:
    policies = Policy("a0", "a1"), Policy("b0", "b1")
    with endpoint.conversation(policies[0]) as one, endpoint.conversation(policies[1]) as other:
        said: dict[str, list[Any]] = {"a": list(HELLO), "b": list(HELLO)}
        for turn in range(2):
            for name, each in (("a", one), ("b", other)):
                answer = await client(each).chat.completions.create(model="m", messages=said[name])
                message = answer.choices[0].message
                assert (message.content, message.tool_calls) == (f"{name}{turn}", None)
                assert answer.choices[0].finish_reason == "stop" and answer.usage.total_tokens == 5
                said[name] += [message, {"role": "user", "content": f"go on {name}"}]
        assert (await post(one, "/chat/completions", {"messages": HELLO}, other.token)).status_code == 401
    for policy, name in zip(policies, "ab", strict=True):
        (first, _), (second, _) = policy.asked
        assert [m["content"] for m in first] == ["hello"]
        assert [m["content"] for m in second] == ["hello", f"{name}0", f"go on {name}"]


async def test_tool_calls_make_the_round_trip(endpoint: PolicyEndpoint) -> None:
    call = '<tool_call>{"name": "find", "arguments": {"number": 7}}</tool_call>'
    policy = Policy(
        f"Let me see.{call}{call}",
        "It is in Lyon.",
        f"{call}<tool_call>no</tool_call>",
        f"Let me see.{call}{call}",
        call,
    )
    with endpoint.conversation(policy) as one:
        ask = client(one).chat.completions.create
        answer = await ask(model="m", messages=HELLO, tools=[FIND])
        message = answer.choices[0].message
        assert message.content == "Let me see." and answer.choices[0].finish_reason == "tool_calls"
        first, second = message.tool_calls
        assert first.function.name == "find" and json.loads(first.function.arguments) == {"number": 7}
        assert first.id != second.id
        parts = [{"type": "text", "text": "in "}, {"type": "text", "text": "Lyon"}]
        results = [{"role": "tool", "tool_call_id": c.id, "content": parts} for c in (first, second)]
        answer = await ask(model="m", messages=[*HELLO, message, *results], tools=[FIND])
        assert answer.choices[0].message.content == "It is in Lyon."
        answer = await ask(model="m", messages=HELLO, tools=[FIND])
        assert answer.choices[0].message.content == policy.texts[2], "a malformed call is a text"
        async with client(one).chat.completions.stream(model="m", messages=HELLO, tools=[FIND]) as stream:
            whole = (await stream.get_final_completion()).choices[0]
        assert (whole.message.content, whole.finish_reason) == ("Let me see.", "tool_calls")
        assert whole.message.tool_calls[1].function.arguments == '{"number": 7}'
        answer = await ask(model="m", messages=HELLO, tools=[FIND], tool_choice="none")
        assert answer.choices[0].message.content == call and not answer.choices[0].message.tool_calls
    (_, tools), (messages, _), _, _, (_, none) = policy.asked
    assert tools[0]["function"]["name"] == "find" and none == ()
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == '{"number": 7}'
    assert messages[2]["content"] == "in Lyon" and messages[2]["tool_call_id"] == first.id


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"messages": []}, "messages"),
        ({"messages": HELLO, "n": 2}, "n: "),
        ({"messages": HELLO, "tool_choice": "required"}, "tool_choice"),
        ({"messages": HELLO, "stop": ["l"]}, "stop: a turn cannot be cut, because"),
        ({"messages": HELLO, "response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x" * 20_000}]}, "serve.max_body_mb"),
        ("{", "JSON"),
        (
            {
                "messages": HELLO,
                "tools": [{"function": {"name": "f", "parameters": {"properties": {"x": {}}, "required": None}}}],
            },
            "tools[0].parameters.required: None: must be a list of names",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
            "JSON object",
        ),
    ],
)
async def test_requests_that_cannot_be_served_are_refused(endpoint: PolicyEndpoint, body: Any, told: str) -> None:
    with endpoint.conversation(Policy()) as one:
        answer = await post(one, "/chat/completions", body)
    assert answer.status_code in (400, 413) and told in answer.json()["error"]["message"]
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert ("has nothing else" in answer.json()["error"]["message"]) == (
        told in ("n: ", "tool_choice", "response_format")
    )


async def test_errors_of_a_turn_have_the_form_of_openai(endpoint: PolicyEndpoint) -> None:
    limits = EpisodeLimit("context_full"), EpisodeLimit("max_turns")
    with endpoint.conversation(Policy(*limits, TemplateError("roles must alternate"), EngineDied("worker 0"))) as one:
        for code in ("context_length_exceeded", "max_turns", None):
            with pytest.raises(openai.BadRequestError) as raised:
                await client(one).chat.completions.create(model="m", messages=HELLO)
            assert raised.value.code == code
        assert one.limit is limits[0] and not one.broken.done()
        with pytest.raises(openai.InternalServerError):
            await client(one).chat.completions.create(model="m", messages=HELLO)
        assert isinstance(one.broken.exception(), EngineDied)
    assert (await post(one, "/chat/completions", {"messages": HELLO})).status_code == 401, "the conversation has ended"
    with endpoint.conversation(Policy("x")) as one:
        answer = await post(one, "/chat/completions", {"messages": HELLO}, Origin="http://evil.example")
    assert answer.status_code == 403


async def test_rewards_are_numbers_by_name(endpoint: PolicyEndpoint) -> None:
    with endpoint.conversation(Policy()) as one:
        for wrong in ({}, [1], {"reward": "1"}, {"reward": True}, {"A b": 1}, {"turn_rewards": 1}, {"reward": 10**400}):
            assert (await post(one, "/reward", wrong)).status_code == 400
        for body in ('{"reward": NaN}', "[" * 5_000):
            assert (await post(one, "/reward", body)).status_code == 400
        await client(one).post("/reward", body={"reward": 1, "polite": 0.5}, cast_to=object)
        await client(one).post("/reward", body={"reward": 2.5, "turn_rewards": [1, 0]}, cast_to=object)
    assert one.rewards == {"reward": 2.5, "polite": 0.5} and one.turn_rewards == (1.0, 0.0)


async def test_requests_of_an_aborted_conversation_are_cancelled(endpoint: PolicyEndpoint) -> None:
    asked = asyncio.Event()
    cancelled = []

    async def ask(*_: Any, **__: Any) -> Rollout:
        asked.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        raise AssertionError

    with endpoint.conversation(ask) as one:
        requests = [asyncio.create_task(post(one, "/chat/completions", {"messages": HELLO})) for _ in range(2)]
        await asked.wait()
        await asyncio.sleep(0.05)  # until both requests wait
    assert [answer.status_code for answer in await asyncio.gather(*requests)] == [499, 499] and cancelled == [True]


async def test_turn_of_a_client_that_has_gone_does_not_count(endpoint: PolicyEndpoint) -> None:
    """OpenAI's clients ask again after a timeout."""
    cancelled = []

    class Slow(Policy):
        async def __call__(self, messages: Any, **options: Any) -> Rollout:
            if not cancelled:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    cancelled.append(True)
                    raise
            return await super().__call__(messages, **options)

    policy = Slow("a0")
    with endpoint.conversation(policy) as one:
        impatient = openai.AsyncOpenAI(base_url=one.base_url, api_key=one.token, max_retries=0, timeout=0.3)
        with pytest.raises(openai.APITimeoutError):
            await impatient.chat.completions.create(model="m", messages=HELLO)
        answer = await client(one).chat.completions.create(model="m", messages=HELLO)
    assert answer.choices[0].message.content == "a0"
    assert cancelled == [True] and len(policy.asked) == 1


# --- processes ---------------------------------------------------------------------------------

HARNESS = """\
import json, os, sys, urllib.request

def post(path, body):
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + path, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))

task = json.load(sys.stdin)
said = [{"role": "user", "content": "task %s" % task["seed"]}]
for turn in range(2):
    answer = post("/chat/completions", {"messages": said})["choices"][0]["message"]
    said += [answer, {"role": "user", "content": "go on"}]
"""


def harness(tmp_path: Path, body: str = "", command: str = "", *, scored: bool = False) -> HarnessEpisode:
    (tmp_path / "agent.py").write_text(HARNESS + body)
    return HarnessEpisode(HarnessConfig(path=command or f"{sys.executable} -S agent.py"), ServeConfig(), scored=scored)


async def hold(run: HarnessEpisode, engine: Engine | None = None, n: int = 1, **settings: Any) -> Any:
    dialogues = replace(runner(run, engine, **{"deadline_s": 60, **settings}), key="env.command")
    request = controller(dialogues).request(0, sample(0))
    (group,) = await dialogues.hold([sample(0)], [replace(request, keys=request.keys[:n], seeds=request.seeds[:n])])
    return dialogues, group


async def test_turns_of_a_harness_are_what_the_engine_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    own, group = await hold(harness(tmp_path, 'post("/reward", {"reward": 0.5, "turn_rewards": [0, 1]})'), n=2)
    assert [(r.key.sample, r.key.turn) for r in group.rollouts] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    requests = {r.keys[0]: r for r in own.engine.requests}
    assert all(requests[r.key].prompt_ids == r.prompt_ids and r.logprobs == (-0.1, -0.2, -0.3) for r in group.rollouts)
    assert group.rollouts[0].prompt_ids == group.rollouts[2].prompt_ids, "one seed for the group"
    text = "".join(map(chr, group.rollouts[3].prompt_ids))
    assert text.endswith("1.0go on"), "the answer of the first turn, as the harness has passed it back"
    assert [r.total.value for r in group.records] == [0, 1, 0, 1]
    ends = [r.episode for r in group.records if r.episode]
    assert [(e.outcome, e.reward) for e in ends] == [("ended", 0.5)] * 2


async def test_configured_rewards_score_the_conversation_of_each_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, group = await hold(harness(tmp_path, scored=True))
    assert [r.total.value for r in group.records] == [0.5, 0.5] and group.records[-1].episode.outcome == "ended"
    assert [t.content for t in group.points[1].history[1:]] == ["0.0", "go on"]


def test_point_of_a_request_has_its_conversation() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"number": 7}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        *HELLO,
        {"role": "assistant", "content": "One moment.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "in Lyon"},
    ]
    point = request_point(sample(0), messages, (FIND,))
    assert (point.id, point.policy, point.tools) == (sample(0).id, "Be brief.", (FIND,))
    assert dialogue_text(point).split("\n") == [
        "Customer: hello", "Agent: One moment.", "Agent calls find(number=7)", "Tool: in Lyon",
    ]  # fmt: skip
    assert point.history[-1].name == "find"


LIMITED = """
try:
    post("/chat/completions", {"messages": [{"role": "user", "content": "x" * 300}]})
finally:
    post("/reward", {"reward": 0.25})
"""


async def test_harness_that_reaches_a_limit_without_a_reward_has_the_reward_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, group = await hold(harness(tmp_path), max_turns=1)
    assert (group.records[-1].episode.outcome, group.records[-1].episode.reward) == ("max_turns", 0.0)
    _, group = await hold(harness(tmp_path, scored=True), max_turns=1)
    assert group.records[-1].episode.reward is None, "the configured rewards score the turns"


@pytest.mark.parametrize(
    ("body", "command", "outcome", "told"),
    [
        (
            "raise ValueError('no stock')",
            "",
            FunctionFailed,
            "env.command: HarnessError: exit code 1: ValueError: no",
        ),
        ("", "", FunctionFailed, "no reward; POST"),
        ("post('/reward', {'turn_rewards': [1]})", "", FunctionFailed, "1 turn_rewards for 2 turns"),
        ("", "true", FunctionFailed, "no reward; POST"),
        ("", "./absent", FunctionFailed, "env.command: FileNotFoundError"),
        ("", "sleep 60", FunctionTimeout, "env.command: no end after 0.3 s"),
        (LIMITED, "", "context_full", ""),
    ],
)
async def test_ends_of_a_harness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, command: str, outcome: Any, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    _, group = await hold(harness(tmp_path, body, command), deadline_s=0.3 if "sleep" in command else 60)
    end = group.records[-1]
    if isinstance(outcome, str):
        assert (end.episode.outcome, end.episode.reward) == (outcome, 0.25)
    else:
        assert end.episode.outcome == "failed" and isinstance(end.total, outcome) and told in end.total.detail


async def test_dead_engine_ends_the_run_and_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = f"sh -c 'sleep 60 & echo $! > pid; {sys.executable} -S agent.py; wait'"
    with pytest.raises(EngineDied):
        await hold(harness(tmp_path, command=command), Engine(fails_at=1))
    pid = int((tmp_path / "pid").read_text())
    while start_time(pid) is not None:
        await asyncio.sleep(0.01)


# --- configuration -----------------------------------------------------------------------------


def test_command_is_configured_as_documented_and_not_run_from_a_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = "python my_agent.py --name 'a: b' --n=2, #1"
    config = load_config(["experiment=smoke", "env=endpoint", f"env.command={command}", "rewards.consistency.weight=0"])
    assert config.env.command is not None and config.env.command.path == command and config.holds_dialogues
    (tmp_path / "config.yaml").write_text(dump_config(config))
    with pytest.raises(ConfigError, match="cannot name code"):
        check_harness("env.command", load_dumped(tmp_path / "config.yaml").functions["env.command"])
    (argument,) = [f"env.command.path={section.path}" for section in config.functions.values()]
    again = load_dumped(tmp_path / "config.yaml", [argument])
    assert again.env.command.path == command
    again.env.command.refuse_recorded("env.command")


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["env=endpoint", "env.command=true", "rewards.consistency.weight=1"], "rewards.consistency.weight=1, which"),
        (["env=endpoint"], "set the harness"),
        (["env.command=true"], "set env=endpoint"),
        (["env=endpoint", "env.command="], "the command line is empty"),
        (["env=endpoint", "env.command=a 'b"], "No closing quotation"),
        (["env=endpoint", "env.command=true", "model.response_format=think_answer"], "response_format='plain'"),
    ],
)
def test_contradictions_are_refused(overrides: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(["experiment=smoke", "rewards.consistency.weight=0", *overrides])
    assert told in str(raised.value)


def test_absent_program_is_reported_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="no program 'absent'"):
        check_harness("env.command", HarnessConfig(path="absent agent.py"))


def test_host_of_another_machine_is_reported_before_anything_starts() -> None:
    with pytest.raises(BadInput, match=r"^env.command.host: '192.0.2.1:0': cannot be listened on .*address of this"):
        check_harness("env.command", HarnessConfig(path="true", host="192.0.2.1"))


def test_absent_script_is_reported_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.py").touch()
    for interpreter in (sys.executable, "bash"):
        with pytest.raises(ConfigError, match=r"^env.command.path: .* no file 'my_agnet.py'; give its path from"):
            check_harness("env.command", HarnessConfig(path=f"{interpreter} my_agnet.py"))
    python = sys.executable
    for command in (f"{python} agent.py x", f"{python} -m agent", "sh -c 'exit 1'", "env nothing", "sh"):
        check_harness("env.command", HarnessConfig(path=command))


async def test_request_without_stop_strings_is_served(endpoint: PolicyEndpoint) -> None:
    with endpoint.conversation(Policy("a", "b")) as one:
        for stop in (None, []):
            assert (await post(one, "/chat/completions", {"messages": HELLO, "stop": stop})).status_code == 200
