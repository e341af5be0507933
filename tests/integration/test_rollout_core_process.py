"""The engine with the model in vLLM's core process, as on GPUs, against transformers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hamr.protocols import GenerationRequest
from tests.integration.test_rollout_engine import TOLERANCE, ask, check_weights_in_flight, gap

pytestmark = [pytest.mark.integration, pytest.mark.deep, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def host(start_engine: Callable[..., Any], tiny: Path) -> Iterator[Any]:
    import ray

    actor = start_engine(tiny, VLLM_ENABLE_V1_MULTIPROCESSING="1")
    ray.get(actor.ready.remote(), timeout=400)
    return actor


def core_process(host: Any) -> psutil.Process:
    children = psutil.Process(ask(host.ready.remote())).children()
    return max(children, key=lambda process: process.memory_info().rss)


def test_log_probabilities_are_those_of_the_model(
    host: Any, tiny: Path, prompt_ids: tuple[int, ...], request_of: Callable[..., GenerationRequest], oracle: Any
) -> None:
    asked = [request_of(prompt_ids, "one", 6, 24), request_of(prompt_ids[::-1], "two", 2, 40)]
    assert gap(ask(host.generate.remote(asked)), oracle(tiny)) < TOLERANCE


def test_an_update_in_flight_records_version_spans(
    host: Any,
    tiny: Path,
    prompt_ids: tuple[int, ...],
    request_of: Callable[..., GenerationRequest],
    oracle: Any,
    tmp_path: Path,
) -> None:
    """The core process would run steps between the new weights, the emptied cache and the new version."""
    check_weights_in_flight(host, tiny, prompt_ids, request_of, oracle, tmp_path)


def test_leaving_early_aborts_the_rest(
    host: Any, prompt_ids: tuple[int, ...], request_of: Callable[..., GenerationRequest]
) -> None:
    assert ask(host.leave_early.remote([request_of(prompt_ids, "a", 1, 2), request_of(prompt_ids, "b", 4, 200)])) == 0


def test_the_core_process_dies_with_its_actor(start_engine: Callable[..., Any], tiny: Path) -> None:
    own = start_engine(tiny, VLLM_ENABLE_V1_MULTIPROCESSING="1")
    core = core_process(own)
    os.kill(ask(own.ready.remote()), signal.SIGKILL)
    psutil.wait_procs([core], timeout=30)
    assert not core.is_running() or core.status() == psutil.STATUS_ZOMBIE


def test_calls_fail_once_an_idle_core_process_died(
    host: Any, prompt_ids: tuple[int, ...], request_of: Callable[..., GenerationRequest]
) -> None:
    """This test ends the file's engine, so it is the last one."""
    core_process(host).kill()
    for call in (host.load_weights.remote("/none", 6), host.generate.remote([request_of(prompt_ids)])):
        with pytest.raises(Exception, match="EngineDied"):
            ask(call)
