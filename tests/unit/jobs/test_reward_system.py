"""The reward system before it starts, and the loop that it runs in."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import hamr
from hamr import RewardSystem
from hamr.config.load import dump_config, load_config
from hamr.errors import ConfigError, DataError
from hamr.jobs.background_loop import BackgroundLoop
from hamr.jobs.reward_system import values_of
from hamr.types import JudgeTimeout, MalformedResponse, RewardRecord, SampleKey, Scored

SAMPLE = {
    "id": "a",
    "ticket": {},
    "policy": "",
    "tools": [],
    "history": [],
    "references": [{"action": "reply", "content": "Hello!"}],
}


def test_it_is_configured_by_overrides_a_yaml_or_a_run_folder(tmp_path: Path) -> None:
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


def test_it_is_an_attribute_of_the_package_that_is_loaded_when_asked_for() -> None:
    assert hamr.RewardSystem is RewardSystem
    with pytest.raises(AttributeError, match="no attribute 'Rewards'"):
        _ = hamr.Rewards  # type: ignore[attr-defined]


async def test_samples_are_checked_before_anything_starts() -> None:
    """In a unit test `ray.init` raises."""
    system = RewardSystem.from_config("experiment=smoke")
    with pytest.raises(DataError, match=r"samples\[1\]: references"):
        system.score([(SAMPLE, ["x"]), (SAMPLE | {"references": []}, ["x"])])
    for responses in ([], "text", ["x", 3]):
        with pytest.raises(DataError, match=r"samples\[0\]: responses"):
            await system.ascore([(SAMPLE, responses)])  # type: ignore[list-item]
    system.close()


def test_a_failure_has_no_value_and_a_malformed_response_its_zero() -> None:
    key = SampleKey(run="r", step=0, prompt="p", sample=0)
    totals = (Scored(value=0.5), JudgeTimeout(), MalformedResponse())
    records = [RewardRecord(key=key, total=total, components=(), action=None, band="none") for total in totals]
    assert values_of(records) == [0.5, None, 0.0]


async def test_the_loop_serves_callers_with_and_without_one_and_cancels_what_is_left() -> None:
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
