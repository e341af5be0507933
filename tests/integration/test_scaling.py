"""Resizing a pool under load: no request is lost, other replicas are unaffected, invalid sizes are one-line errors."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray.cloudpickle

from hamr.apps.shared.commands import parse_command
from hamr.apps.shared.live_control import LiveControl
from hamr.apps.train.pool_scaler import LivePoolScaler
from hamr.config.pools import AutoscalingConfig, PoolConfig
from hamr.config.schema import Config
from hamr.errors import BadInput
from hamr.pools.client import PoolClient
from hamr.pools.deployment import pool_status, start_pools, stop_pools
from hamr.types import Answer, Question, ScorerCall

pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])

RUN = "scaled"


class Slow:
    """Scorer that takes the number of seconds in the question and answers with its process id."""

    def __init__(self, pool: str, config: object, model: Path) -> None:
        self.pool = pool

    async def score(self, questions: Sequence[Question]) -> list[Answer]:
        await asyncio.sleep(max(float(q.variables["seconds"]) for q in questions))
        call = ScorerCall(
            pool=self.pool, model="scripted", prompt_version="1", replica="", queue_s=0.0, service_s=0.0,
            prompt_tokens=1, output_tokens=1,
        )  # fmt: skip
        return [Answer(score=1.0, verdict=str(os.getpid()), call=call) for _ in questions]

    async def check(self) -> None:
        """Always well."""

    def close(self) -> None:
        """Nothing to close."""


class Logged(Slow):
    """Also repeats the question's name in its answer, and writes it to the file that takes the place of a model."""

    def __init__(self, pool: str, config: object, model: Path) -> None:
        super().__init__(pool, config, model)
        self.file = model

    async def score(self, questions: Sequence[Question]) -> list[Answer]:
        names, answers = [q.variables["name"] for q in questions], await super().score(questions)
        with self.file.open("a") as file:
            file.write("".join(f"{name}\n" for name in names))
        return [replace(answer, text=name) for name, answer in zip(names, answers, strict=True)]


class QuickAutoscaling(AutoscalingConfig):
    """Delays of Ray Serve that are shorter than its 30 s up and 10 min down."""

    metrics_interval_s: float = 0.5
    look_back_period_s: float = 2.0
    upscale_delay_s: float = 0.5
    downscale_delay_s: float = 2.0


def section(role: str, **changes: object) -> dict[str, object]:
    return {
        "role": role, "prompt": f"{role}.en", "engine": {"num_cpus": 0.1}, "batch_size": 1, "max_ongoing_requests": 2,
        "deadline_s": 60.0,
    } | changes  # fmt: skip


CONFIG = Config.model_validate(
    {
        "data": {"type": "sage"},
        "pools": {
            "reranker": section("reranker"),
            "judge": section("judge", autoscaling={"min_replicas": 1, "max_replicas": 3}),
        },
    }
)


class NoRouter:
    """Router stub that records its calls."""

    def __init__(self) -> None:
        self.told: list[Mapping[str, int]] = []

    async def describe(self) -> dict[str, dict[str, Any]]:
        return {"reranker": {"breaker": "closed", "waiting": 0}}

    async def resize(self, replicas: Mapping[str, int]) -> None:
        self.told.append(dict(replicas))

    async def forget(self) -> None:
        """There is no cache."""


@pytest.fixture(scope="module", autouse=True)
def pools(local_ray: None) -> Iterator[None]:
    asyncio.run(start_pools(CONFIG.pools, {}, run=RUN, timeout_s=150, scorer_factory=Slow))
    yield
    asyncio.run(stop_pools(RUN))


def command(folder: Path, *args: str) -> list[Any]:
    """`hamr scale` in a thread, as from another process; its exit code or its error."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(parse_command(["scale", str(folder), *args]).run())
        except Exception as e:
            outcome.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    outcome.append(thread)
    return outcome


async def finished(outcome: list[Any]) -> Any:
    await asyncio.to_thread(outcome[0].join)
    return outcome[1]


def pids() -> dict[str, set[int]]:
    return {name: set(status["pids"]) for name, status in pool_status(RUN).items()}


@pytest.mark.deep
async def test_pool_is_resized_under_load_without_affecting_others(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("{}")
    router, noted = NoRouter(), {}
    scaler = LivePoolScaler(CONFIG, {}, RUN, router, scorer_factory=Slow)
    control = LiveControl(folder, RUN, note=noted.update, phase=lambda: "rl")
    client = PoolClient("reranker", CONFIG.pools["reranker"], RUN)
    before = pids()
    assert (len(before["reranker"]), len(before["judge"])) == (1, 1)

    async def ask(seconds: float) -> Answer:
        return await client.ask(Question(variables={"seconds": str(seconds)}))

    async with control.serving():
        control.scaler = scaler
        load = [asyncio.create_task(ask(0.3)) for _ in range(20)]
        assert await finished(command(folder, "reranker=3")) == 0
        grown = pids()
        assert before["reranker"] < grown["reranker"] and len(grown["reranker"]) == 3, "the one that was there stayed"
        assert grown["judge"] == before["judge"]
        assert {a.score for a in await asyncio.gather(*load)} == {1.0}
        assert router.told == [{"reranker": 3}]

        under_way = [asyncio.create_task(ask(7.0)) for _ in range(6)]  # longer than the least time to drain
        await asyncio.sleep(1.0)
        assert await finished(command(folder, "reranker=1")) == 0
        shrunk = pids()
        answers = await asyncio.gather(*under_way)
        assert [a.score for a in answers] == [1.0] * 6
        assert {a.call.attempts for a in answers if a.call} == {1}, "none was cut off and asked again"
        assert len(shrunk["reranker"]) == 1 and shrunk["reranker"] < grown["reranker"]
        assert shrunk["judge"] == before["judge"]

        assert await finished(command(folder, "judge=2")) == 0, "the least of an autoscaled pool"
        assert before["judge"] < pids()["judge"] and len(pids()["judge"]) == 2
        for wanted, says in (
            ("juge=2", "scale juge: 2: no such pool; available (nearest first): judge, reranker"),
            ("judge=4", "beyond the bounds of pools.judge.autoscaling, 1 to 3"),
            ("judge=0", "the run needs it: rewards.consistency would have no scorer"),
            ("reranker=500", "the cluster has room for"),
        ):
            refused = await finished(command(folder, wanted))
            assert isinstance(refused, BadInput)
            assert says in str(refused)
        assert {a.score for a in await asyncio.gather(ask(0.0), ask(0.0))} == {1.0}, "the pool is unharmed"
        async with asyncio.timeout(20):
            while noted.get("pool/reranker/scaled") != 2.0 or noted.get("pool/judge/replicas") != 2.0:
                await asyncio.sleep(0.1)
    await client.close()


@pytest.mark.deep
async def test_autoscaled_pool_grows_under_load_and_shrinks_when_idle(tmp_path: Path) -> None:
    run, asked = "autoscaled", tmp_path / "asked"
    scale = QuickAutoscaling(min_replicas=1, max_replicas=3, target_ongoing_requests=1.0)
    pool = PoolConfig.model_validate(section("reranker")).model_copy(update={"autoscaling": scale})
    await start_pools({"reranker": pool}, {"reranker": asked}, run=run, timeout_s=150, scorer_factory=Logged)
    client = PoolClient("reranker", pool, run)
    answers: dict[str, Answer] = {}

    async def ask_until(done: asyncio.Event, pause_s: float) -> None:
        while not done.is_set():
            name = f"question {len(answers)}"
            answers[name] = Answer()
            variables = {"seconds": "0.1", "name": name}
            answers[name] = await client.ask(Question(variables=variables, affinity=name))
            await asyncio.sleep(pause_s)

    async def load_until(replicas: int, *, askers: int, pause_s: float = 0.0) -> None:
        done = asyncio.Event()
        askers_done = [asyncio.create_task(ask_until(done, pause_s)) for _ in range(askers)]
        while (status := (await asyncio.to_thread(pool_status, run))["reranker"])["running"] != replicas:
            await asyncio.sleep(0.2)
        done.set()
        await asyncio.gather(*askers_done)
        assert status["replicas"] == replicas

    try:
        await load_until(1, askers=0)
        await load_until(3, askers=12)
        await load_until(1, askers=1, pause_s=0.5)
    finally:
        await client.close()
        await stop_pools(run)
    assert {name: answer.text for name, answer in answers.items()} == {name: name for name in answers}
    assert Counter(asked.read_text().splitlines()) == dict.fromkeys(answers, 1), "none is asked twice"
