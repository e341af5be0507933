"""The reward system without training: as an object, for a file and behind HTTP. Scripted scorers, real Serve."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import ray.cloudpickle

from hamr import RewardSystem
from hamr.adapters.client import RewardClient
from hamr.adapters.trl import TrlReward
from hamr.apps.score.file import score_file
from hamr.apps.score.output import ScoreOutput
from hamr.apps.score.summary import Tally
from hamr.apps.serve.app import Routes
from hamr.config.load import dump_config, load_config
from hamr.config.pools import PoolConfig
from hamr.data.samples import from_json
from hamr.errors import DataError, ScorerUnavailable
from hamr.pools.deployment import pool_status
from hamr.security.http_server import bind_socket, build_server
from hamr.telemetry.record_json import record_from_dict
from hamr.types import Answer, Failure, JudgeTimeout, Question, Scored, ScorerCall
from tests.docs_pages import DOCS, save_files

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

OVERRIDES = [
    "experiment=smoke",
    "pools.reranker.engine.num_cpus=0.1",
    "pools.judge.engine.num_cpus=0.1",
    "router.deadline_s=5",
    "rewards.format.weight=0",
]
SAMPLE = {
    "id": "s",
    "ticket": {},
    "policy": "Help the customer.",
    "tools": [],
    "history": [{"role": "customer", "content": "My package is too dear."}],
    "references": [{"action": "reply", "content": "May I offer a cheaper one?"}],
}


class Scripted:
    """Scorer that gives n words n/10, inside the interval at 7 to 9; "stuck" blocks the judge."""

    def __init__(self, pool: str, config: PoolConfig, model: Path) -> None:
        self.pool = pool

    async def score(self, questions: Sequence[Question]) -> list[Answer]:
        said = [q.variables["statement_b"] for q in questions]
        if self.pool == "judge" and any("stuck" in text for text in said):
            await asyncio.sleep(1000)
        call = ScorerCall(
            pool=self.pool, model="scripted", prompt_version="1", replica="", queue_s=0.0, service_s=0.0,
            prompt_tokens=1, output_tokens=1,
        )  # fmt: skip
        return [Answer(score=min(1.0, len(text.split()) / 10), verdict="yes", call=call) for text in said]

    async def check(self) -> None:
        """Always well."""

    def close(self) -> None:
        """Nothing to close."""


class FailingScorer(Scripted):
    def __init__(self, pool: str, config: PoolConfig, model: Path) -> None:
        raise RuntimeError("feels sick")


def words(n: int, *special: str) -> str:
    return " ".join([*special, *["word"] * (n - len(special))])


@pytest.fixture(scope="module")
def system(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RewardSystem]:
    """Reward system with a documented function, in a process where Ray is already initialised."""
    folder = tmp_path_factory.mktemp("own")
    save_files(DOCS / "reference" / "hooks.md", folder)
    own = {"path": f"{folder / 'my_rewards.py'}:politeness", "weight": 0.2}
    overrides = [*OVERRIDES, *(f"rewards.custom.politeness.{key}={value}" for key, value in own.items())]
    with RewardSystem.from_config(overrides, scorer_factory=Scripted) as running:
        yield running
    assert ray.is_initialized(), "the host's Ray is left as it is"
    assert pool_status(running._name) == {}


def test_records_are_returned_in_order_with_unique_keys(system: RewardSystem) -> None:
    records = system.score([(SAMPLE, [words(8), words(9)]), (from_json(SAMPLE), [words(7)])])
    assert [record.s_r for record in records] == [0.8, 0.9, 0.7]
    assert all(isinstance(record.total, Scored) and record.band == "inside" for record in records)
    again = system.score([(SAMPLE, [words(8)])])
    assert len({record.key for record in [*records, *again]}) == 4
    assert system.rewards([(SAMPLE, [words(8), words(9)])]) == [[0.8, 0.9]]
    assert system.rewards([(SAMPLE, [words(8, "please")])]) == [[pytest.approx(1.0)]], "with the own function"
    with pytest.raises(DataError, match=r"samples\[1\]: references"):
        system.score([(SAMPLE, ["x"]), (SAMPLE | {"references": []}, ["x"])])


async def test_system_scores_in_a_running_loop_and_from_threads(system: RewardSystem) -> None:
    async def one(n: int) -> float | None:
        [record] = await system.ascore([(SAMPLE, [words(n)])])
        return record.s_r

    assert await asyncio.gather(*(one(n) for n in (7, 8, 9))) == [0.7, 0.8, 0.9]
    threads = await asyncio.gather(*(asyncio.to_thread(system.rewards, [(SAMPLE, [words(n)])]) for n in (7, 8)))
    assert threads == [[[0.7]], [[0.8]]]


def test_hanging_scorer_is_a_typed_failure_and_reward_none(system: RewardSystem) -> None:
    samples = [(SAMPLE, [words(3, "stuck"), words(8)])]
    reward = TrlReward(system)
    columns = {"prompts": ["p"] * 2, "completions": samples[0][1], "completion_ids": [[1]] * 2, "sample": [SAMPLE] * 2}
    with ThreadPoolExecutor() as threads:  # each waits for the deadline
        records, rewards = threads.submit(system.score, samples), threads.submit(system.rewards, samples)
        assert reward(**columns) == [None, 0.8]
    stuck, fine = records.result()
    assert isinstance(stuck.total, JudgeTimeout) and isinstance(fine.total, Scored)
    assert rewards.result() == [[None, 0.8]]


def test_file_is_scored_and_resumed_through_the_pools(system: RewardSystem, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [
        {**SAMPLE, "id": f"s{i}", "responses": [words(7 + i % 3, f"n{i}.{j}") for j in range(3)]} for i in range(20)
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def score(resume: bool, stop_after: int | None = None) -> Tally:
        tally, seen = Tally(), 0

        def report(size: int, responses: int) -> None:
            nonlocal seen
            seen += 1
            if seen == stop_after:
                raise KeyboardInterrupt

        with ScoreOutput(target, source, {}, resume=resume) as output:
            groups = ((group, raw, ()) for group, raw in output.remaining(tally.add))
            asyncio.run(score_file(output, groups, system.ascore_group, tally, at_once=4, report=report))
        return tally

    with pytest.raises(KeyboardInterrupt):
        score(resume=False, stop_after=5)
    with target.open("ab") as file:
        file.write(b'{"key": {"run": "sc')
    assert score(resume=True).responses == 60
    records = [record_from_dict(json.loads(line)) for line in target.read_text().splitlines()]
    assert [(r.key.step, r.key.sample) for r in records] == [(i, j) for i in range(1, 21) for j in range(3)]
    assert [r.s_r for r in records] == pytest.approx([(7 + i % 3) / 10 for i in range(20) for _ in range(3)])


@pytest.fixture
def url(system: RewardSystem) -> Iterator[str]:
    """Address of the `hamr serve` server of this system, running in a thread."""
    config = system.config.serve.model_copy(update={"port": 0})
    with bind_socket(config) as listener:
        server = build_server(Routes(system, config).app(), config)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()


def test_http_server_returns_the_same_rewards_and_records(system: RewardSystem, url: str) -> None:
    client = RewardClient(url, attempts=1)
    samples = [(SAMPLE, [words(8), words(3, "stuck")]), ({**SAMPLE, "id": "t"}, [words(7)])]
    with ThreadPoolExecutor() as threads:  # each waits for the deadline
        calls = [threads.submit(call, samples) for call in (client.rewards, system.rewards, client.score)]
    assert calls[0].result() == [[0.8, None], [0.7]] == calls[1].result()
    [[record, failed], _] = calls[2].result()
    assert record_from_dict(record).total == Scored(value=0.8)
    assert isinstance(record_from_dict(failed).total, Failure)
    assert client.rewards([(SAMPLE, [words(8, "please")])]) == [[pytest.approx(1.0)]], "with the own function"
    health = client.health()
    assert {name: pool["running"] for name, pool in health["pools"].items()} == {"reranker": 1, "judge": 1}
    label = json.dumps(SAMPLE)
    body = {"query": [f"P? {words(8)}</s>"], "prompts": ["P?"], "labels": [label]}
    request = urllib.request.Request(
        f"{url}/get_reward", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        assert json.load(answer)["rewards"] == [0.8]


@pytest.mark.deep
def test_failed_start_leaves_no_pools(local_ray: None) -> None:
    sick = RewardSystem.from_config(OVERRIDES, scorer_factory=FailingScorer)
    with pytest.raises(ScorerUnavailable, match="feels sick"):
        sick.score([(SAMPLE, ["x"])])
    assert pool_status(sick._name) == {}
    assert ray.is_initialized()


SCRIPT = """
import asyncio, sys
sys.path.insert(0, {tests!r})
import ray.cloudpickle, test_reward_system as t
ray.cloudpickle.register_pickle_by_value(t)
{body}
"""


def in_a_process(body: str, **options: object) -> subprocess.Popen[str]:
    """Run the code in a separate process without an initialised Ray."""
    code = SCRIPT.format(tests=str(Path(__file__).parent), body=body)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", code], env=env, **pipes, **options)  # type: ignore[call-overload, no-any-return]


def check_output(process: subprocess.Popen[str], lines: list[str]) -> None:
    out, err = process.communicate(timeout=200)
    assert (process.returncode, out.splitlines()) == (0, lines), err
    assert "Traceback" not in err


FORGETFUL = """
from hamr import RewardSystem
forgetful = RewardSystem.from_config({path!r}, scorer_factory=t.Scripted)
print(forgetful.rewards([(t.SAMPLE, [t.words(7)])]), flush=True)
"""


@pytest.mark.deep
def test_script_that_does_not_close_its_system_stops_its_own_ray(tmp_path: Path) -> None:
    """From a run folder's YAML."""
    (tmp_path / "config.yaml").write_text(dump_config(load_config(OVERRIDES)))
    check_output(in_a_process(FORGETFUL.format(path=str(tmp_path / "config.yaml"))), ["[[0.7]]"])


@pytest.mark.deep
def test_system_starts_and_stops_its_own_ray_twice(tmp_path: Path) -> None:
    """From a run folder: once as an async context manager, once by a script that does not call close."""
    (tmp_path / "config.yaml").write_text(dump_config(load_config(OVERRIDES)))
    managed = f"""
from hamr import RewardSystem
async def main():
    async with RewardSystem.from_config({str(tmp_path)!r}, scorer_factory=t.Scripted) as system:
        print((await system.ascore([(t.SAMPLE, [t.words(8)])]))[0].s_r, flush=True)
asyncio.run(main())
assert not ray.is_initialized()
"""
    check_output(in_a_process(managed + FORGETFUL.format(path=str(tmp_path))), ["0.8", "[[0.7]]"])
