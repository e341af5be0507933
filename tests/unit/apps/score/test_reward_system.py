"""The reward system before its start, and its event loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import hamr
from hamr import RewardSystem
from hamr.apps.score.background_loop import BackgroundLoop
from hamr.config.load import dump_config, load_config
from hamr.errors import CapacityError, ConfigError, DataError, HamrError
from hamr.types import JudgeTimeout, MalformedResponse, RewardRecord, Rollout, SampleKey, Scored, ServiceSample

SAMPLE = {
    "id": "a",
    "ticket": {},
    "policy": "",
    "tools": [],
    "history": [],
    "references": [{"action": "reply", "content": "Hello!"}],
}


def test_system_is_configured_by_overrides_yaml_or_run_folder(tmp_path: Path) -> None:
    config = load_config(["experiment=smoke", "rewards.format.weight=0.3"])
    (tmp_path / "config.yaml").write_text(dump_config(config))
    for source in (
        ["experiment=smoke", "rewards.format.weight=0.3"],
        tmp_path,
        str(tmp_path),
        tmp_path / "config.yaml",
    ):
        assert RewardSystem.from_config(source).config == config
    assert RewardSystem.from_config("experiment=smoke").config == load_config(["experiment=smoke"])
    with pytest.raises(ConfigError, match="no such choice"):
        RewardSystem.from_config(["experiment=smok"])
    with pytest.raises(ConfigError, match="give a run folder's config"):
        RewardSystem.from_config(tmp_path / "none.yaml")


def test_auditor_of_training_is_refused_before_the_start() -> None:
    wanted = ["rewards.consistency.audit_frac=0.1", "rewards.consistency.audit.by=rules"]
    with pytest.raises(ConfigError, match="rewards.consistency.audit.by.*rules.*answers in hamr train only"):
        RewardSystem.from_config(wanted)


def test_package_loads_reward_system_lazily() -> None:
    assert hamr.RewardSystem is RewardSystem
    with pytest.raises(AttributeError, match="no attribute 'Rewards'"):
        _ = hamr.Rewards  # type: ignore[attr-defined]


async def test_samples_are_checked_before_the_start() -> None:
    """In a unit test `ray.init` raises."""
    system = RewardSystem.from_config("experiment=smoke")
    with pytest.raises(DataError, match=r"samples\[1\]: references"):
        system.score([(SAMPLE, ["x"]), (SAMPLE | {"references": []}, ["x"])])
    for responses in ([], "text", ["x", 3]):
        with pytest.raises(DataError, match=r"samples\[0\]: responses"):
            await system.ascore([(SAMPLE, responses)])  # type: ignore[list-item]
    with pytest.raises(DataError, match=r"samples\[0\]: responses"):
        system.score([(SAMPLE, map(str, [1, 2]))])  # type: ignore[list-item]
    with pytest.raises(DataError, match=r"samples\[0\]: 'dict': give a pair of a sample and its responses"):
        system.score([SAMPLE])  # type: ignore[list-item]
    system.close()


async def test_health_before_the_start_starts_no_ray() -> None:
    """In a unit test `ray.init` raises."""
    health = await RewardSystem.from_config("experiment=smoke").health()
    assert health and all(status == {"replicas": 0, "running": 0} for status in health.values())


def test_failure_is_none_and_malformed_response_is_zero() -> None:
    key = SampleKey(run="r", step=0, prompt="p", sample=0)
    totals = (Scored(value=0.5), JudgeTimeout(), MalformedResponse())
    records = [RewardRecord(key=key, total=total, components=(), action=None, band="none") for total in totals]
    assert [record.reward for record in records] == [0.5, None, 0.0]


async def test_background_loop_serves_sync_and_async_callers() -> None:
    loop = BackgroundLoop("test")
    states: list[str] = []

    async def work(seconds: float) -> str:
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            states.append("cancelled")
            raise
        return threading.current_thread().name

    assert loop.run(work(0)) == await loop.arun(work(0)) == "test"

    async def broken() -> None:
        raise ValueError("as it is")

    with pytest.raises(ValueError, match="as it is"):
        await loop.arun(broken())
    waiting = asyncio.create_task(loop.arun(work(1000)))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    left = asyncio.create_task(loop.arun(work(1000)))
    await asyncio.sleep(0.05)
    await asyncio.to_thread(loop.close)
    with pytest.raises(asyncio.CancelledError):
        await left
    assert states == ["cancelled", "cancelled"]
    loop.close()


# --- without Ray --------------------------------------------------------------------------------


class FakeRuntime:
    """Stand-in for Ray and the actors on it: records what runs, and scores by length."""

    def __init__(self) -> None:
        self.pools: list[str] = []
        self.routers = self.under_way = self.most = 0
        self.sick = False

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
        import ray

        from hamr.apps.score import reward_system as module

        monkeypatch.setattr(ray, "is_initialized", lambda: True)
        monkeypatch.setattr(module, "check_pool_room", lambda *args, **kwargs: None)
        monkeypatch.setattr(module, "prepare_scorers", lambda *args: {})
        monkeypatch.setattr(module, "start_pools", self.start_pools)
        monkeypatch.setattr(module, "stop_pools", self.stop_pools)
        monkeypatch.setattr(module.RouterClient, "start", self.start_router)
        return self

    async def start_pools(self, pools: object, paths: object, *, run: str, **options: object) -> None:
        self.pools.append(run)

    async def stop_pools(self, run: str) -> None:
        self.pools.remove(run)

    async def start_router(self, *args: object) -> FakeRuntime:
        if self.sick:
            raise HamrError("the router did not start: feels sick")
        self.routers += 1
        return self

    async def shutdown(self) -> None:
        self.routers -= 1

    async def score(self, sample: ServiceSample, rollout: Rollout) -> RewardRecord:
        if rollout.text == "defect":
            raise ZeroDivisionError("a defect")
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(1000 if rollout.text == "for ever" else 0.001)
        finally:
            self.under_way -= 1
        total = Scored(value=float(len(rollout.text)))
        return RewardRecord(key=rollout.key, total=total, components=(), action=None, band="none")


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    return FakeRuntime().install(monkeypatch)


def test_system_starts_lazily_and_cleans_up(runtime: FakeRuntime) -> None:
    system = RewardSystem.from_config(["experiment=smoke", "score.groups_in_flight=3"])
    assert runtime.pools == []
    samples = [(SAMPLE, ["x" * i, "y"]) for i in range(20)]
    assert system.rewards(samples) == [[float(i), 1.0] for i in range(20)]
    assert (len(runtime.pools), runtime.routers) == (1, 1)
    assert 2 < runtime.most <= 6, "three groups of two at a time"
    records = [*system.score(samples), *system.score(samples)]
    assert len({record.key for record in records}) == len(records) == 80
    with pytest.raises(DataError):
        system.score([(SAMPLE, [])])
    system.close()
    system.close()
    assert (runtime.pools, runtime.routers) == ([], 0)
    with system:
        assert system.rewards([(SAMPLE, ["again"])]) == [[5.0]]
    assert (runtime.pools, runtime.routers) == ([], 0)


async def test_cancelled_wait_cancels_its_scoring(runtime: FakeRuntime) -> None:
    async with RewardSystem.from_config("experiment=smoke") as system:
        scored = await asyncio.gather(*(system.ascore([(SAMPLE, ["x" * n])]) for n in range(5)))
        assert [record.total for [record] in scored] == [Scored(value=float(n)) for n in range(5)]
        waiting = asyncio.create_task(system.ascore([(SAMPLE, ["for ever"])]))
        while not runtime.under_way:
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        while runtime.under_way:
            await asyncio.sleep(0.01)
    assert (runtime.pools, runtime.routers) == ([], 0)


def test_failed_start_leaves_no_actors(runtime: FakeRuntime) -> None:
    runtime.sick = True
    system = RewardSystem.from_config("experiment=smoke")
    with pytest.raises(HamrError, match="feels sick"):
        system.start()
    assert (runtime.pools, runtime.routers) == ([], 0)
    runtime.sick = False
    with system:
        assert runtime.routers == 1


def test_two_systems_on_one_ray_are_isolated(runtime: FakeRuntime) -> None:
    with RewardSystem.from_config("experiment=smoke"), RewardSystem.from_config("experiment=smoke"):
        assert len(set(runtime.pools)) == 2


def test_router_defect_is_raised_unchanged_and_cancels_pending_work(runtime: FakeRuntime) -> None:
    with RewardSystem.from_config("experiment=smoke") as system:
        with pytest.raises(ZeroDivisionError, match="a defect"):
            system.score([(SAMPLE, ["for ever", "x"]), (SAMPLE, ["for ever", "defect"])])
        assert runtime.under_way == 0
        assert system.rewards([(SAMPLE, ["fine"])]) == [[4.0]]


def test_replicas_over_capacity_are_rejected_before_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """8 logical CPUs: a reranker of 0.25 and a router of 0.1 leave room for (8 - 0.35) / 0.25 = 30 judges."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    system = RewardSystem.from_config(["experiment=smoke", "pools.judge.replicas=64"])
    with pytest.raises(CapacityError, match=r"pools\.judge\.replicas: 64: .*lower it to 30 or less") as refused:
        system.start()
    assert refused.value.exit_code == 2
    with pytest.raises(CapacityError, match="no node with its labels|no node has these labels"):
        RewardSystem.from_config(["experiment=smoke", "pools.judge.engine.node_labels={zone: east}"]).start()
