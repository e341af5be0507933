"""Waiting for pools that start."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hamr.config.pools import PoolConfig
from hamr.errors import ScorerUnavailable
from hamr.pools import client, deployment


class Status(str):
    value = property(str)


async def test_a_long_start_is_reported_with_the_state_of_the_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def status() -> Any:
        calls.append(1)
        state = Status("RUNNING" if len(calls) > 3 else "DEPLOYING")
        pool = SimpleNamespace(status=state, message="loading weights", deployments={})
        return SimpleNamespace(applications={"app": pool})

    monkeypatch.setattr(client, "import_serve", lambda: SimpleNamespace(status=status))
    monkeypatch.setattr(deployment, "POLL_S", 0.0)
    monkeypatch.setattr(deployment, "REPORT_S", 0.0)
    lines: list[str] = []
    await deployment._all_healthy({"app": "judge"}, 1800.0, lines.append)
    assert len(lines) == 3
    assert lines[0] == "waiting for pools since 0 s of at most 1800 s (judge: loading weights)"
    calls.clear()
    with pytest.raises(ScorerUnavailable, match=r"not ready within -1 s .judge: loading weights."):
        await deployment._all_healthy({"app": "judge"}, -1.0, lines.append)


async def test_failed_start_without_a_message_names_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = SimpleNamespace(status=Status("DEPLOY_FAILED"), message="", deployments={})
    status = SimpleNamespace(applications={"app": failed})
    monkeypatch.setattr(client, "import_serve", lambda: SimpleNamespace(status=lambda: status))
    with pytest.raises(ScorerUnavailable, match="pool 'judge' could not start: DEPLOY_FAILED"):
        await deployment._all_healthy({"app": "judge"}, 60.0, lambda line: None)


async def test_states_are_read_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own reading fails if two threads pickle the same request router."""
    alone = threading.Lock()

    def status() -> Any:
        assert alone.acquire(blocking=False)
        time.sleep(0.01)
        alone.release()
        return SimpleNamespace(applications={"app": "running"})

    monkeypatch.setattr(client, "import_serve", lambda: SimpleNamespace(status=status))
    read = await asyncio.gather(*(client.serve_applications() for _ in range(8)))
    assert read == [{"app": "running"}] * 8


def test_replica_of_an_endpoint_takes_as_many_questions_in_requests_of_one() -> None:
    """Serve counts requests: 8 with 16 questions each, or 128 with one."""
    judge = {"role": "judge", "prompt": "judge.en", "autoscaling": {"max_replicas": 2, "target_ongoing_requests": 3}}
    there = {"type": "openai", "endpoint": "http://127.0.0.1:9/v1"}
    taken = []
    for config in (PoolConfig.model_validate(judge), PoolConfig.model_validate(judge | there)):
        made = deployment._application("judge", config, Path(), deployment.build_scorer)._bound_deployment
        scaling = made._deployment_config.autoscaling_config
        requests = made.max_ongoing_requests
        taken.append((requests, requests * config.request_size, scaling.target_ongoing_requests, config.places))
    assert taken == [(8, 128, 3, 256), (128, 128, 48, 256)]
