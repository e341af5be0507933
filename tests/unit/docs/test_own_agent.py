"""The page on the user's own agent, as written: only the endpoint's port is another one, and pools need no cluster."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hamr import cli
from hamr.pools.scorer_openai import OpenAIScorer
from hamr.types import Answer, Question
from tests.docs_pages import DOCS, commands, run_python, save_files

PAGE = DOCS / "how-to" / "own-agent.md"


class Agent(ThreadingHTTPServer):
    """Endpoint that does what the page's function does. `asked` collects the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[dict[str, Any]] = []


class _Handler(BaseHTTPRequestHandler):
    server: Agent

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(request)
        functions: dict[str, Any] = {}
        exec((Path("my_agent.py")).read_text(), functions)
        said = functions["reply"](request["messages"], request.get("tools", []))
        message = {"role": "assistant"} | (said if isinstance(said, dict) else {"content": said})
        data = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@pytest.fixture
def endpoint() -> Iterator[Agent]:
    with Agent() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_files(PAGE, tmp_path)
    return tmp_path


def without_a_cluster(config: Any, names: list[str], work: Any, *, run: str, splits: Any = None) -> None:
    """Ask the endpoints from this process, as replicas do on a cluster. Other pools are a judge that says yes."""
    endpoints = {name: OpenAIScorer(name, config.pools[name]) for name in names if config.pools[name].type == "openai"}

    def ask(name: str) -> Any:
        async def one(question: Question) -> Answer:
            return (await endpoints[name].score([question]))[0]

        return one if name in endpoints else say_yes

    asyncio.run(work({name: ask(name) for name in names}))


async def say_yes(question: Question) -> Answer:
    if not question.prompt:
        return Answer(score=1.0, verdict="yes")
    said = {"risk": '{"reason": "", "risk": "no"}', "hallucination": '{"reason": "", "judgment": "none"}'}
    return Answer(text=said.get(question.prompt.partition(".")[0], '{"reason": "", "score": 4}'))


def run(start: str, **replaced: str) -> None:
    [command] = [command for command in commands(PAGE) if start in command]
    for old, new in replaced.items():
        command = command.replace(old, new)
    assert cli.main(shlex.split(command)[1:]) == 0


def average(output: str, agent: str) -> dict[str, Any]:
    return json.loads(Path(output, "metrics.json").read_text())["agents"][agent]["average"]


def test_function_is_tested_by_its_actions(folder: Path) -> None:
    run("agent=my_agent.py:reply")
    found = average("mine", "my_agent.py:reply")
    assert 0 < found["truth_action"]["mean"] < 100
    assert found["logic"]["mean"] is None and found["unreadable"]["mean"] == 0
    traces = [json.loads(line) for line in Path("mine/traces.jsonl").read_text().splitlines()]
    uses = [use for trace in traces for turn in trace["turns"] for use in turn["calls"]]
    assert {use["action"] for use in uses} == {"ChangeOrder"}


def test_endpoint_gets_the_tools_and_their_results(
    folder: Path, endpoint: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hamr.apps.evaluate.sage.run.with_pools", without_a_cluster)
    run("agent=mine", **{"127.0.0.1:8001": f"127.0.0.1:{endpoint.server_port}"})
    run("agent=my_agent.py:reply")
    assert average("endpoint", "mine") == average("mine", "my_agent.py:reply")
    names = [tool["function"]["name"] for tool in endpoint.asked[0]["tools"]]
    assert names == ["change_order", "trans_human"]
    [result] = {m["content"] for request in endpoint.asked for m in request["messages"] if m["role"] == "tool"} - {
        '{"status": "already done", "action": "Carry out the change or the cancellation."}'
    }
    assert json.loads(result) == {"status": "done", "action": "Carry out the change or the cancellation."}
    last = endpoint.asked[-1]["messages"]
    answered = {m["tool_call_id"] for m in last if m["role"] == "tool"}
    assert answered == {call["id"] for m in last for call in m.get("tool_calls", ())}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's items and samples."""
    folder = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run("hamr data olabench")
        run("hamr data sage")
    return folder


@pytest.fixture
def decisions(folder: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(data, folder, dirs_exist_ok=True)
    for benchmark in ("olabench", "ecs"):
        monkeypatch.setattr(f"hamr.apps.evaluate.{benchmark}.run.with_pools", without_a_cluster)
    monkeypatch.setattr("hamr.apps.evaluate.ecs.responses.with_pools", without_a_cluster)
    return folder


def graded(output: str, policy: str) -> dict[str, Any]:
    return json.loads(Path(output, "summary.json").read_text())["policies"][policy]["all"]


def scored(output: str, policy: str) -> dict[str, Any]:
    return json.loads(Path(output, "metrics.json").read_text())["policies"][policy]


def test_function_and_endpoint_are_graded_alike_by_olabench(decisions: Path, endpoint: Agent) -> None:
    run("data=bench policy=my_agent.py:reply")
    run("data=bench policy=mine", **{"127.0.0.1:8001": f"127.0.0.1:{endpoint.server_port}"})
    function, server = graded("graded", "my_agent.py:reply"), graded("graded_endpoint", "mine")
    assert function["responses"]["given"] == 5 and function["grades"]["dialogue"]["mean"] == 4
    assert (server["responses"], server["grades"]) == (function["responses"], function["grades"])
    assert any(request.get("tools") for request in endpoint.asked)


def test_function_and_endpoint_are_graded_alike_by_ecs(decisions: Path, endpoint: Agent) -> None:
    run("benchmark=ecs policy=my_agent.py:reply")
    run("benchmark=ecs policy=mine", **{"127.0.0.1:8001": f"127.0.0.1:{endpoint.server_port}"})
    found = scored("ecs", "my_agent.py:reply")
    assert found["samples"] == 12 and found["values"]["multi_ecs"]["mean"] > 0
    assert scored("ecs_endpoint", "mine") == found
    assert all(request["tools"] for request in endpoint.asked)


def test_finished_responses_are_graded_without_an_agent(decisions: Path) -> None:
    run_python(PAGE, 1)
    run("data=bench policy=responses.jsonl")
    assert graded("graded_file", "responses")["responses"]["given"] == 5
    run("input=answered.jsonl")
    assert scored("ecs_file", "answered")["kinds"].keys() == {"tool_call", "type_mismatch"}
    run("input=answered.jsonl", strip="error", ecs_file="ecs_error")
    assert scored("ecs_error", "answered")["kinds"] == {"malformed": 12}


def test_fenced_json_is_read_or_an_error(folder: Path) -> None:
    run("agent=json_agent.py:reply")
    assert average("fenced", "json_agent.py:reply")["unreadable"]["mean"] == 0
    run("agent=json_agent.py:reply", strip="error", fenced="refused")
    assert average("refused", "json_agent.py:reply")["unreadable"]["mean"] == 100


def test_finished_dialogues_are_scored_without_an_agent(folder: Path) -> None:
    run("dialogues=dialogues.jsonl")
    run("dialogues=dialogues.jsonl")
    found = average("said", "dialogues")
    assert found["truth_action"]["mean"] == 100 and found["chat"]["mean"] == 90
    assert len(Path("said/traces.jsonl").read_text().splitlines()) == 2
    rows = [json.loads(line) for line in Path("said/assessments.jsonl").read_text().splitlines()]
    assert [row["dialogue"] for row in rows] == ["d1", "d2"]
    assert rows[1]["truth"] is None and rows[1]["reference"] is None, "the case of d2 is not known"
