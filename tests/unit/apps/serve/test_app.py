"""HTTP routes over a scripted system: status codes, error fields, limits and missing rewards."""

from __future__ import annotations

import asyncio
import json
import math
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import jsonschema
import pytest
import yaml
from starlette.testclient import TestClient

from hamr.apps.serve.app import Routes
from hamr.apps.serve.run import read_token
from hamr.cli import main as cli
from hamr.config.load import dump_config, load_config
from hamr.config.schema import Config
from hamr.config.use import ServeConfig
from hamr.data.responses import as_group
from hamr.errors import BadInput, HamrError
from hamr.security import redaction
from hamr.security.http_server import bind_socket, build_server
from hamr.security.redaction import redact_text
from hamr.telemetry.record_json import record_from_dict
from hamr.types import JudgeTimeout, Reply, RewardRecord, Scored, ServiceSample

SAMPLE = {
    "id": "a",
    "ticket": {},
    "policy": "",
    "tools": [],
    "history": [],
    "references": [{"action": "reply", "content": "Hello!"}],
}


class Scripted:
    """A reward of a tenth per character; "hang" times out, "boom" is a defect."""

    def __init__(self) -> None:
        self.running = 1
        self.groups: list[Sequence[str]] = []

    async def ascore(self, samples: Sequence[tuple[ServiceSample, Sequence[str]]]) -> list[RewardRecord]:
        records = []
        for number, item in enumerate(samples):
            group = as_group(item, where=f"samples[{number}]", number=number)
            self.groups.append(group.responses)
            for rollout in group.rollouts("serve"):
                if rollout.text == "boom":
                    raise ZeroDivisionError("a defect")
                if rollout.text == "down":
                    raise HamrError("the router did not start")
                total = JudgeTimeout(detail="late") if rollout.text == "hang" else Scored(value=len(rollout.text) / 10)
                action = Reply(content=rollout.text)
                records.append(RewardRecord(key=rollout.key, total=total, components=(), action=action, band="inside"))
        return records

    async def health(self) -> dict[str, Any]:
        return {"judge": {"running": self.running, "replicas": 1}}


def client(
    system: Scripted | None = None, kept: list | None = None, token: str | None = None, **config: Any
) -> TestClient:
    keep = (kept if kept is not None else []).append
    routes = Routes(system or Scripted(), ServeConfig(**config), keep, token=token)
    return TestClient(routes.app(), "http://127.0.0.1:8711", raise_server_exceptions=False)


def openrlhf(*texts: str) -> dict:
    label = json.dumps(SAMPLE)
    return {"query": [f"P?{t}" for t in texts], "prompts": ["P?"] * len(texts), "labels": [label] * len(texts)}


def test_openrlhf_gets_one_number_per_query() -> None:
    system = Scripted()
    answer = client(system).post("/get_reward", json=openrlhf("one", "three<|im_end|>"))
    assert answer.status_code == 200
    assert answer.json()["rewards"] == answer.json()["scores"] == [0.3, 0.5]
    assert system.groups == [("one", "three")], "neighbours with one label are a group"


@pytest.mark.parametrize(
    ("missing", "status", "rewards"),
    [
        ("refuse", 503, None),
        ("null", 200, [0.3, None, 0.5]),
        ("nan", 200, [0.3, math.nan, 0.5]),
        ("group_mean", 200, [0.3, 0.4, 0.5]),
    ],
)
def test_missing_reward_is_returned_as_configured(missing: str, status: int, rewards: list | None) -> None:
    answer = client(missing=missing).post("/get_reward", json=openrlhf("one", "hang", "three"))
    assert answer.status_code == status
    if rewards is None:
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["failures"] == [{"index": 1, "kind": "judge_timeout", "detail": "late"}]
    else:
        assert json.loads(answer.text)["rewards"] == pytest.approx(rewards, nan_ok=True)
        assert json.loads(answer.text)["extra_logs"]["failed"] == [0.0, 1.0, 0.0]


def test_returned_records_equal_the_stored_ones() -> None:
    kept: list[dict] = []
    body = {"groups": [{"sample": SAMPLE, "responses": ["one", "hang"]}, {"sample": SAMPLE, "responses": ["five5"]}]}
    [first, second] = client(kept=kept).post("/score", json=body).json()["groups"]
    assert (first["rewards"], second["rewards"]) == ([0.3, None], [0.5])
    assert kept == first["records"] + second["records"]
    assert record_from_dict(first["records"][1]).total == JudgeTimeout(detail="late")


@pytest.mark.parametrize(
    ("route", "body", "field"),
    [
        ("/get_reward", b"{", "body"),
        ("/get_reward", openrlhf() | {"query": []}, "query"),
        ("/get_reward", openrlhf("x") | {"labels": ['{"id": ""}']}, "labels[0]: id"),
        (
            "/score",
            {"groups": [{"sample": SAMPLE | {"references": []}, "responses": ["x"]}]},
            "groups[0].sample: references",
        ),
        ("/score", {"groups": [{"sample": SAMPLE, "responses": []}]}, "groups[0].responses"),
        ("/score", {"groups": [{"sample": SAMPLE, "responses": ["a"]}], "bar": 2}, "bar"),
        ("/score", {"groups": [{"sample": SAMPLE, "responses": ["a"], "foo": 1}]}, "groups[0].foo"),
        (
            "/score",
            {"groups": [{"sample": SAMPLE | {"policy": "\ud83d"}, "responses": ["x"]}]},
            "groups[0].sample: policy",
        ),
        (
            "/get_reward",
            openrlhf("x") | {"labels": [json.dumps(SAMPLE | {"ticket": {"x": math.nan}})]},
            "labels[0]: ticket",
        ),
    ],
)
def test_invalid_request_returns_400_with_its_field(route: str, body: Any, field: str) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client().post(route, content=data, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["field"]) == (400, field)


def test_lone_surrogate_in_a_response_fails_no_other_response() -> None:
    """A sample with one is invalid, but a response is what a policy wrote."""
    body = json.dumps({"groups": [{"sample": SAMPLE, "responses": ["\ud83d", "one"]}]})
    answer = client().post("/score", content=body, headers={"Content-Type": "application/json"})
    assert answer.json()["groups"][0]["rewards"] == [0.1, 0.3]


def test_limits_defects_and_unknown_routes_return_their_status(monkeypatch: pytest.MonkeyPatch) -> None:
    small = client(max_body_mb=0.001)
    answer = small.post("/get_reward", json=openrlhf("x" * 2000))
    assert answer.status_code == 413 and "serve.max_body_mb=0.001" in answer.json()["error"]
    answer = client().post("/get_reward", json=openrlhf("boom"))
    assert (answer.status_code, answer.json()) == (500, {"error": "ZeroDivisionError: a defect"})
    answer = client().post("/get_reward", json=openrlhf("down"))
    assert (answer.status_code, answer.json()) == (500, {"error": "the router did not start"})
    monkeypatch.setenv("HF_TOKEN", "the router")
    answer = client().post("/get_reward", json=openrlhf("down"))
    assert answer.json() == {"error": "[redacted] did not start"}
    assert client().get("/get_reward").status_code == 405
    assert client().get("/nothing").status_code == 404


def test_health_reports_counts_and_unavailable_pools() -> None:
    system = Scripted()
    server = client(system)
    server.post("/get_reward", json=openrlhf("one", "hang"))
    answer = server.get("/health")
    assert answer.status_code == 200
    said = answer.json()
    assert (said["status"], said["requests"], said["responses"], said["failed"]) == ("ok", 1, 2, 1)
    system.running = 0
    answer = server.get("/health")
    assert answer.status_code == 503 and answer.json()["error"] == "no replica is running of: judge"


def test_port_in_use_is_reported_before_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    """In a unit test `ray.init` raises, so the error must come before it."""
    with bind_socket(ServeConfig(port=0)) as first:
        port = first.getsockname()[1]
        assert cli(["serve", "experiment=smoke", f"serve.port={port}"]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and f"serve.port: '127.0.0.1:{port}': cannot be listened on" in said
    with bind_socket(ServeConfig(port=port)) as again:
        assert again.getsockname()[1] == port, "given back"
    for unknown in ("no.such.host.invalid", "a..b"):
        with pytest.raises(BadInput, match=r"serve\.host"), bind_socket(ServeConfig(host=unknown)):
            pass


def test_unwritable_records_file_is_reported_before_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert cli(["serve", "experiment=smoke", f"serve.port={port}", "serve.records=/proc/no/r.jsonl"]) == 2
    assert "serve.records" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("headers", "auth", "status"),
    [
        ({"Authorization": "Bearer right-token"}, None, 200),
        ({"Authorization": "bearer right-token"}, None, 200),
        ({}, ("hamr", "right-token"), 200),  # as http clients send the login of a URL
        ({}, None, 401),
        ({"Authorization": "Bearer wrong-token"}, None, 401),
        ({"Authorization": "Bearer "}, None, 401),
        ({"Authorization": "Basic not-base64"}, None, 401),
        ({"Authorization": "right-token"}, None, 401),
        ({"Authorization": "Bearer right-token", "Origin": "http://evil.example"}, None, 403),
    ],
)
def test_every_route_requires_the_token(headers: dict[str, str], auth: tuple[str, str] | None, status: int) -> None:
    server = client(token="right-token")
    assert server.get("/health", headers=headers, auth=auth).status_code == status
    assert server.post("/get_reward", json=openrlhf("one"), headers=headers, auth=auth).status_code == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost:8711"}, 200),
        ({"Host": "[::1]:8711"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Origin": "http://localhost:8711"}, 403),
        ({"Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content-Type": "application/json; charset=utf-8"}, 200),
    ],
)
def test_web_pages_cannot_use_a_server_without_a_token(headers: dict[str, str], status: int) -> None:
    body = json.dumps(openrlhf("one"))
    answer = client().post("/get_reward", content=body, headers={"Content-Type": "application/json"} | headers)
    assert answer.status_code == status


async def test_a_body_that_does_not_arrive_is_given_up() -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    routes = Routes(Scripted(), ServeConfig(body_timeout_s=0.05))
    transport = httpx.ASGITransport(app=routes.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as sender:
        answer = await sender.post("/score", content=slow(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 408 and "serve.body_timeout_s=0.05" in answer.json()["error"]


def test_an_address_of_the_network_requires_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redaction, "_named", set())
    monkeypatch.delenv("HAMR_SERVE_TOKEN", raising=False)
    assert read_token(ServeConfig()) is None
    for host in ("0.0.0.0", "10.0.0.1", "::", "node.example"):
        with pytest.raises(BadInput, match=r"serve\.host: .* export a token as HAMR_SERVE_TOKEN"):
            read_token(ServeConfig(host=host))
    monkeypatch.setenv("HAMR_SERVE_TOKEN", "right-token")
    assert read_token(ServeConfig(host="0.0.0.0")) == read_token(ServeConfig()) == "right-token"
    assert "right-token" not in redact_text("see right-token")


@pytest.mark.parametrize(("written", "read"), [("null", "null"), ("nan", "nan"), ("refuse", "refuse")])
def test_missing_is_set_as_documented(written: str, read: str) -> None:
    config = load_config(["experiment=smoke", f"serve.missing={written}"])
    assert config.serve.missing == read
    assert Config.model_validate(yaml.safe_load(dump_config(config))).serve.missing == read


def test_openapi_describes_requests_and_answers() -> None:
    asked = client()
    document = asked.get("/openapi.json").json()
    assert {route.path for route in Routes(Scripted(), ServeConfig()).app().routes} == {
        *document["paths"],
        "/openapi.json",
    }

    def valid(name: str, value: Any) -> None:
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(value)

    score = {"groups": [{"sample": SAMPLE, "responses": ["one", "hang"]}]}
    valid("ScoreRequest", score)
    valid("ScoreAnswer", asked.post("/score", json=score).json())
    valid("GetRewardRequest", openrlhf("one"))
    valid("GetRewardAnswer", asked.post("/get_reward", json=openrlhf("one")).json())
    valid("Health", asked.get("/health").json())
    valid("Error", asked.post("/get_reward", json=openrlhf("hang")).json())
    valid("Error", asked.post("/score", json={}).json())
    with pytest.raises(jsonschema.ValidationError):
        valid("ScoreRequest", {"groups": []})


def test_metrics_count_responses_and_durations_by_status() -> None:
    asked = client()
    asked.post("/score", json={"groups": [{"sample": SAMPLE, "responses": ["one", "two", "hang"]}]})
    asked.post("/score", json={})
    answer = asked.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    lines = answer.text.splitlines()
    assert "hamr_serve_responses_total 2.0" in lines
    assert 'hamr_serve_unscored_responses_total{failure="judge_timeout"} 1.0' in lines
    for status in (200, 400):
        assert f'hamr_serve_request_seconds_count{{route="/score",status="{status}"}} 1.0' in lines


async def test_connection_without_headers_is_closed() -> None:
    config = ServeConfig(port=0, header_timeout_s=0.05)
    with bind_socket(config) as listener:
        server = build_server(Routes(Scripted(), config).app(), config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        port = listener.getsockname()[1]
        body = json.dumps({"groups": [{"sample": SAMPLE, "responses": ["one"]}]}).encode()
        request = b"POST /score HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        request += b"Content-Length: %d\r\n\r\n" % len(body) + body
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        writer.write(request[:20])  # a second request on the connection, whose headers never end
        await asyncio.wait_for(reader.read(), 60)
        silent, other = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(silent.read(), 60) == b""
        for stream in (writer, other):
            stream.close()
        server.should_exit = True
        await serving


async def test_connections_above_the_limit_are_refused() -> None:
    config = ServeConfig(port=0, max_connections=2)
    with bind_socket(config) as listener:
        server = build_server(Routes(Scripted(), config).app(), config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        _, silent = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
        streams = [silent]
        for status in (b"200", b"503"):
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.getsockname()[1])
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert status in await asyncio.wait_for(reader.readline(), 60)
            streams.append(writer)
        for stream in streams:
            stream.close()
        server.should_exit = True
        await serving
