"""HTTP routes over a scripted system: status codes, error fields, limits and missing rewards."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Sequence
from typing import Any

import pytest
from starlette.testclient import TestClient

from hamr.apps.serve.app import Routes
from hamr.apps.serve.run import bind_socket
from hamr.cli import main as cli
from hamr.config.use import ServeConfig
from hamr.data.responses import as_group
from hamr.errors import BadInput, HamrError
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


def client(system: Scripted | None = None, kept: list | None = None, **config: Any) -> TestClient:
    keep = (kept if kept is not None else []).append
    routes = Routes(system or Scripted(), ServeConfig(**config), keep)
    return TestClient(routes.app(), raise_server_exceptions=False)


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
    ],
)
def test_invalid_request_returns_400_with_its_field(route: str, body: Any, field: str) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client().post(route, content=data)
    assert (answer.status_code, answer.json()["field"]) == (400, field)


def test_limits_defects_and_unknown_routes_return_their_status() -> None:
    small = client(max_body_mb=0.001)
    answer = small.post("/get_reward", json=openrlhf("x" * 2000))
    assert answer.status_code == 413 and "serve.max_body_mb=0.001" in answer.json()["error"]
    answer = client().post("/get_reward", json=openrlhf("boom"))
    assert (answer.status_code, answer.json()) == (500, {"error": "ZeroDivisionError: a defect"})
    answer = client().post("/get_reward", json=openrlhf("down"))
    assert (answer.status_code, answer.json()) == (500, {"error": "the router did not start"})
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
    with pytest.raises(BadInput, match=r"serve\.host"), bind_socket(ServeConfig(host="no.such.host.invalid")):
        pass


def test_unwritable_records_file_is_reported_before_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert cli(["serve", "experiment=smoke", f"serve.port={port}", "serve.records=/proc/no/r.jsonl"]) == 2
    assert "serve.records" in capsys.readouterr().err
