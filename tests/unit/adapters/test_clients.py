"""Clients for other trainers: the exact calling conventions of TRL and verl, against a real HTTP server in this
process.
"""

from __future__ import annotations

import asyncio
import json
import math
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from hamr.adapters import verl
from hamr.adapters.client import RewardClient
from hamr.adapters.trl import TrlReward
from hamr.errors import BadInput, DataError, HamrError

BROKEN = "breaks off"
A, B = {"id": "a", "n": 1}, {"id": "b"}


def reward_of(text: str) -> float | None:
    return None if "hang" in text else len(text) / 10


class Server(ThreadingHTTPServer):
    """Speaks /score; `script` holds statuses to answer with first, `seen` every request's groups."""

    def __init__(self) -> None:
        self.script: list[tuple[int, Any]] = []
        self.seen: list[list[dict]] = []
        self.heals = False
        self.slow = threading.Event()
        """Lets it answer."""
        self.slow.set()
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.script:
            self.answer(*self.server.script.pop(0))
            return
        self.server.slow.wait(30)
        self.server.seen.append(body["groups"])
        healed = self.server.heals and len(self.server.seen) > 1
        groups = []
        for group in body["groups"]:
            values = [len(t) / 10 if healed else reward_of(t) for t in group["responses"]]
            records = [
                {
                    "total": {"kind": "failure", "detail": "stuck"} if v is None else {"kind": "scored", "value": v},
                    "action": None if "{" in t else {"action": "reply", "content": t},
                    "components": [{"name": "format"}],
                    "band": "above" if v and v > 0.5 else "inside",
                }
                for t, v in zip(group["responses"], values, strict=True)
            ]
            groups.append({"rewards": values, "records": records})
        self.answer(200, {"groups": groups})

    def do_GET(self) -> None:
        self.answer(200, {"status": "ok"})

    def answer(self, status: int, body: Any) -> None:
        """Answer with JSON; with a part of it only, if `body` is BROKEN."""
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data) + 100 * (body == BROKEN)))
        self.close_connection = True
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


# --- the client ----------------------------------------------------------------------------------


def client(server: Server, pauses: list[float] | None = None) -> RewardClient:
    return RewardClient(server.url, attempts=3, sleep=(pauses if pauses is not None else []).append)


def test_rewards_and_records_by_group(server: Server) -> None:
    assert client(server).rewards([(A, ["four", "hang"]), (B, ["sevenxx"])]) == [[0.4, None], [0.7]]
    assert client(server).score([(A, ["four"])])[0][0]["total"] == {"kind": "scored", "value": 0.4}
    assert client(server).rewards([]) == []
    assert client(server).health() == {"status": "ok"}
    assert len(server.seen) == 2, "nothing is asked about nothing"


def test_transient_errors_are_retried_with_exponential_backoff(server: Server) -> None:
    pauses: list[float] = []
    server.script = [(503, {"error": "busy"}), (502, {})]
    assert client(server, pauses).rewards([(A, ["four"])]) == [[0.4]]
    assert pauses == [1.0, 2.0]
    server.script = [(503, BROKEN), (200, BROKEN)]
    assert client(server).rewards([(A, ["four"])]) == [[0.4]]
    server.script = [(503, {"error": "busy"})] * 3
    with pytest.raises(HamrError, match=r"/score: no answer in 3 attempts: 503 busy"):
        client(server).rewards([(A, ["four"])])


@pytest.mark.parametrize(("status", "kind"), [(400, BadInput), (413, BadInput), (500, HamrError)])
def test_permanent_errors_are_not_retried(server: Server, status: int, kind: type[HamrError]) -> None:
    server.script = [(status, {"error": "labels[0]: no"})]
    with pytest.raises(kind, match=r"labels\[0\]: no"):
        client(server).rewards([(A, ["four"])])
    assert not server.script and not server.seen


def test_unreachable_server_is_reported_in_one_line(server: Server) -> None:
    gone = RewardClient("http://127.0.0.1:9", attempts=2, sleep=lambda s: None)
    with pytest.raises(HamrError, match=r"http://127\.0\.0\.1:9/score: no answer in 2 attempts: .*refused"):
        gone.rewards([(A, ["x"])])
    for bad in ("localhost:8711", "http://[::1"):
        with pytest.raises(BadInput, match=r"^url: "):
            RewardClient(bad)


def test_loopback_requests_bypass_the_proxy(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert client(server).rewards([(A, ["four"])]) == [[0.4]]


# --- TRL ---------------------------------------------------------------------------------------


class Scripted:
    def __init__(self) -> None:
        self.asked: list[tuple[Mapping[str, Any], Sequence[str]]] = []

    def rewards(self, samples: Sequence[tuple[Mapping[str, Any], Sequence[str]]]) -> list[list[float | None]]:
        self.asked += samples
        return [[reward_of(text) for text in texts] for _, texts in samples]


def call(reward: TrlReward, **changes: Any) -> list[float | None]:
    """As GRPOTrainer calls it: everything by keyword, every column of the dataset a list, and its own three."""
    samples = [json.dumps(A)] * 2 + [json.dumps(B)] * 2
    given = {
        "prompts": ["p"] * 4,
        "completions": ["one", "three", "hang", "four"],
        "completion_ids": [[1]] * 4,
        "sample": samples,
        "difficulty": [1, 1, 2, 2],
        "trainer_state": object(),
        "log_extra": lambda name, values: None,
        "log_metric": lambda name, value: None,
    }
    return reward(**given | changes)


def test_trl_completions_are_scored_by_group_and_failures_are_none() -> None:
    rewards = Scripted()
    logged: dict[str, float] = {}
    values = call(TrlReward(rewards), log_metric=logged.__setitem__)
    assert values == [0.3, 0.5, None, 0.4]
    assert rewards.asked == [(A, ["one", "three"]), (B, ["hang", "four"])]
    assert logged == {"hamr/failed_frac": 0.25}
    assert TrlReward(rewards).__name__ == "hamr", "TRL names its metrics after this"


def test_trl_conversational_completions_have_exactly_one_message() -> None:
    messages = [[{"role": "assistant", "content": text}] for text in ("one", "three", "hang", "four")]
    assert call(TrlReward(Scripted()), completions=messages) == [0.3, 0.5, None, 0.4]
    for bad in ([], [messages[0][0], messages[1][0]], [{"role": "assistant", "tool_calls": [{}], "content": ""}], 3):
        with pytest.raises(DataError, match=r"completions\[1\]: .*do not pass `tools` to TRL"):
            call(TrlReward(Scripted()), completions=[messages[0], bad, messages[2], messages[3]])


def test_trl_group_size_separates_two_groups_of_one_sample() -> None:
    rewards = Scripted()
    call(TrlReward(rewards, group_size=2), sample=[A] * 4)
    assert [texts for _, texts in rewards.asked] == [["one", "three"], ["hang", "four"]]


def test_dataset_without_samples_is_rejected() -> None:
    with pytest.raises(DataError, match=r"sample: \['difficulty'\]: no such column"):
        TrlReward(Scripted())(prompts=["p"], completions=["c"], completion_ids=[[1]], difficulty=[1])
    with pytest.raises(DataError, match=r"sample\[2\]: .*not JSON"):
        call(TrlReward(Scripted()), sample=["{}", "{}", "oops", "oops"])
    assert call(TrlReward(Scripted(), column="ticket"), ticket=[A] * 4)[0] == 0.3


def test_trl_reward_can_be_pickled_for_the_asynchronous_trainer(server: Server) -> None:
    """`AsyncRolloutWorker.start` pickles it; a group has neither `trainer_state` nor functions that log."""
    reward = TrlReward(client(server))
    given = {"prompts": ["p"] * 2, "completions": ["one", "hang"], "completion_ids": [[1]] * 2, "sample": [A] * 2}
    assert reward(**given) == [0.3, None]
    reward = TrlReward(RewardClient(server.url))
    assert pickle.loads(pickle.dumps(reward))(**given) == [0.3, None]


# --- verl ----------------------------------------------------------------------------------------


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that verl's function would have slept."""
    slept: list[float] = []
    monkeypatch.setattr(verl.time, "sleep", slept.append)
    return slept


def test_verl_score_is_a_dict_of_numbers(server: Server) -> None:
    """`compute_score(data_source=, solution_str=, ground_truth=, extra_info=, **reward_kwargs)`, all by keyword."""
    scored = verl.compute_score(
        data_source="x", solution_str="sevenxx", ground_truth=json.dumps(A), extra_info={"num_turns": 2},
        url=server.url, reward_router_address=None,
    )  # fmt: skip
    assert scored == {"score": 0.7, "malformed": 0.0, "escalated": 1.0}
    scored = verl.compute_score("x", "{ no", "gold", {"sample": A}, url=server.url)
    assert scored["malformed"] == 1.0
    assert server.seen[-1] == [{"sample": A, "responses": ["{ no"]}]


def test_verl_batches_keep_their_groups(server: Server, monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> None:
    monkeypatch.setenv(verl.URL, server.url)
    truths = [json.dumps(A)] * 3 + [json.dumps(B)]
    scored = verl.compute_score_batch(
        data_sources=["x"] * 4, solution_strs=["one", "three", "hang", "four"], ground_truths=truths,
        extra_infos=[None] * 4, missing="group_mean",
    )  # fmt: skip
    assert [s["score"] for s in scored] == pytest.approx([0.3, 0.5, 0.4, 0.4])
    assert [len(group["responses"]) for group in server.seen[0]] == [3, 1]
    assert [len(groups) for groups in server.seen] == [2, 1, 1], "only the group with the failure is asked again"
    server.script = [
        (200, {"groups": [{"rewards": [1.0], "records": [{"action": None, "components": [{}], "band": "none"}]}]})
    ]
    with pytest.raises(verl.RewardRefused, match="ValueError"):
        verl.compute_score_batch(["x"] * 2, ["one", "four"], truths[:2], [None] * 2)


def test_missing_verl_reward_is_retried_and_then_raised(server: Server, pauses: list[float]) -> None:
    with pytest.raises(verl.RewardRefused, match="failure: stuck"):
        verl.compute_score("x", "hang", A, None, url=server.url)
    assert (len(server.seen), pauses) == (3, [5.0, 10.0])
    assert math.isnan(verl.compute_score("x", "hang", A, None, url=server.url, missing="nan")["score"])
    server.seen.clear()
    server.heals = True
    assert verl.compute_score("x", "hang", A, None, url=server.url)["score"] == 0.4


def test_verl_requires_a_url_and_a_numeric_missing_value(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(verl.URL, raising=False)
    with pytest.raises(verl.RewardRefused, match=r"reward_kwargs\.url"):
        verl.compute_score("x", "one", A, None)
    with pytest.raises(verl.RewardRefused, match="takes numbers only"):
        verl.compute_score("x", "one", A, None, url=server.url, missing="null")  # type: ignore[arg-type]


async def ask_limited(timeout: float, **call: Any) -> float:
    """As verl's manager `rate_limited` calls a function and handles its errors."""
    try:
        return (await asyncio.wait_for(verl.compute_score_async(**call), timeout=timeout))["score"]
    except TimeoutError:
        return 0.0
    except Exception:
        return 0.0


async def test_verl_rate_limited_manager_never_turns_a_refusal_into_zero(server: Server, pauses: list[float]) -> None:
    given = {"data_source": "x", "ground_truth": A, "extra_info": None, "url": server.url}
    assert await ask_limited(60.0, solution_str="sevenxx", **given) == 0.7
    with pytest.raises(verl.RewardRefused, match="failure: stuck"):
        await ask_limited(60.0, solution_str="hang", **given)
    server.slow.clear()
    with pytest.raises(verl.RewardRefused, match=r"with \+reward\.timeout="):
        await ask_limited(0.01, solution_str="sevenxx", **given)
    server.slow.set()
    record = {"total": {}, "action": None, "components": [{}], "band": "none"}
    for body in ({}, [], {"groups": []}, {"groups": [{"rewards": ["x"], "records": [record]}]}):
        server.script = [(200, body)]
        with pytest.raises(verl.RewardRefused):
            await ask_limited(60.0, solution_str="sevenxx", **given)
    for bad in ({"ground_truth": {"id": {1}}}, {"extra_info": "text"}, {"asks": "3x"}, {"url": "http://[::1"}):
        with pytest.raises(verl.RewardRefused):
            await ask_limited(60.0, solution_str="hang", **given | bad)


# --- weight --------------------------------------------------------------------------------------


def test_client_modules_import_only_the_standard_library() -> None:
    """Loaded by file as verl does, in a Python without installed packages (-S)."""
    root = Path(verl.__file__).parents[2]
    code = (
        f"import sys; sys.path.insert(0, {str(root)!r})\n"
        "import importlib.util as u\n"
        f"spec = u.spec_from_file_location('custom_module', {verl.__file__!r})\n"
        "m = u.module_from_spec(spec); spec.loader.exec_module(m); assert callable(m.compute_score)\n"
        "import hamr.adapters.trl, hamr.adapters.wire, hamr.data.rendering, hamr.data.samples\n"
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
