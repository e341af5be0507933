"""Resizes and model reloads of a run's pools, without Serve."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hamr.apps.train import pool_scaler
from hamr.apps.train.pool_scaler import LivePoolScaler
from hamr.config.schema import Config

POOLS = {name: {"role": name, "prompt": f"{name}.en"} for name in ("reranker", "judge")}


class Router:
    async def describe(self) -> dict[str, dict[str, Any]]:
        return {}

    async def resize(self, replicas: Mapping[str, int]) -> None: ...

    async def forget(self) -> None: ...


async def test_refitted_model_survives_a_resize_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    deployed: list[tuple[int, str]] = []

    async def resize_pools(pools: Mapping[str, Any], paths: Mapping[str, Path], **_: Any) -> None:
        for _ in range(2):  # one call of Serve for each phase of a resize
            await asyncio.sleep(0)
            deployed.append((pools["reranker"].replicas, paths["reranker"].name))

    monkeypatch.setattr(pool_scaler, "resize_pools", resize_pools)
    config = Config.model_validate({"data": {"type": "sage"}, "pools": POOLS, "cluster": {"elastic": True}})
    scaler = LivePoolScaler(config, {"reranker": Path("first")}, "r", Router())
    await asyncio.gather(scaler.resize({"reranker": 2}), scaler.reload({"reranker": Path("refitted")}))
    assert deployed[-1] == (2, "refitted")
    await asyncio.gather(scaler.reload({"reranker": Path("again")}), scaler.resize({"reranker": 3}))
    assert deployed[-1] == (3, "again")
