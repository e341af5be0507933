"""Shared by all tests: markers by folder, one model cache and one Ray a session, no Ray in unit tests, no deadlines."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from hamr.garbage import collect_rarely

ROOT = Path(__file__).parent
MARKERS = ("unit", "integration", "e2e")

# How long an example takes depends on the machine's load. In CI the examples are the same in every run.
settings.register_profile(
    "hamr", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.register_profile("deep", settings.get_profile("hamr"), max_examples=200, derandomize=False)
settings.register_profile("push", settings.get_profile("hamr"), max_examples=20)
settings.load_profile("push")

LONGEST = (
    "e2e/test_known_optimum.py",
    "integration/test_trainer.py",
    "e2e/test_preempted.py",
    "integration/test_scorer_training.py",
    "integration/test_serving.py",
    "e2e/test_own_data.py",
    "e2e/test_cluster.py",
    "integration/test_nodes.py",
    "integration/test_tutorials.py",
    "e2e/test_pipeline.py",
    "integration/test_faults.py",
    "integration/test_reward_system.py",
    "integration/test_pools_scripted.py",
    "integration/test_pools.py",
    "integration/test_scaling.py",
    "integration/test_sft.py",
    "integration/test_slurm_script.py",
    "integration/test_scorer_pairs.py",
    "integration/test_rollout_workers.py",
    "integration/test_router_actor.py",
    "integration/test_rollout_engine.py",
)
"""Files that start first, by decreasing CPU time, so that the processes finish at about the same time."""

SLOW = ("apps", "launch", "config/test_shipped.py", "calibration/test_fit.py", "telemetry/test_recorder.py")
SLOW += ("adapters", "bench/sage", "data/test_sage_samples.py", "trainer/test_checkpoints.py", "test_canary.py")
SLOW += ("test_packaging.py", "docs")
"""Parts of tests/unit that `make check` leaves out: whole commands, and what takes several seconds."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--deep", action="store_true", help="property tests with 200 examples, and the tests marked deep")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--deep"):
        settings.load_profile("deep")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test by its folder and duration, let the longest files begin, and choose by `--deep`."""
    for item in items:
        for marker in _markers(item.path):
            item.add_marker(marker)
    deep, kept, left = config.getoption("--deep"), [], []
    for item in items:
        is_deep = item.get_closest_marker("deep") or (deep and is_hypothesis_test(getattr(item, "obj", None)))
        (kept if bool(is_deep) == deep else left).append(item)
    rank = {ROOT / name: i for i, name in enumerate(LONGEST)}
    items[:] = sorted(kept, key=lambda item: rank.get(item.path, len(rank)))
    config.hook.pytest_deselected(items=left)
    collect_rarely()  # the items and what their modules have imported stay until the end


@functools.cache
def _markers(file: Path) -> tuple[str, ...]:
    slow = any(file.is_relative_to(ROOT / "unit" / part) for part in SLOW)
    return (*({file.relative_to(ROOT).parts[0]} & {*MARKERS}), *(["slow"] if slow else []))


@pytest.fixture(scope="session", autouse=True)
def hamr_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """HAMR_CACHE for the whole session, so that a bundled model is built once and the user's cache stays untouched.

    A cache that the environment names is used as it is. Ray's workers inherit the variable.
    """
    named = os.environ.get("HAMR_CACHE")
    if named:
        yield Path(named)
        return
    base = tmp_path_factory.getbasetemp()
    # Under xdist every worker has a folder of its own below the session's.
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "hamr-cache"
    shared.mkdir(exist_ok=True)
    os.environ["HAMR_CACHE"] = str(shared)
    yield shared
    del os.environ["HAMR_CACHE"]


@pytest.fixture(autouse=True)
def no_ray_in_unit_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under tests/unit, `ray.init` raises; so does every remote call that would start Ray by itself."""
    if request.node.get_closest_marker("unit") is None:
        return
    import ray

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise AssertionError("a unit test started Ray; use a fake, or move the test to tests/integration")

    monkeypatch.setattr(ray, "init", refuse)


@pytest.fixture(scope="session")
def local_ray() -> Iterator[None]:
    """Provide a private local Ray for the whole session."""
    import ray

    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    # As hamr sets them where it starts Ray.
    os.environ.setdefault("RAY_worker_niceness", "0")
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    with tempfile.TemporaryDirectory(prefix="hr", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray.init(
            num_cpus=8, include_dashboard=False, _temp_dir=folder, object_store_memory=200 << 20, log_to_driver=False
        )
        yield
        ray.shutdown()


@pytest.fixture(scope="session")
def joined(local_ray: None) -> tuple[str, ...]:
    """Return the overrides of a run that joins the session's Ray. Starting one takes seconds of CPU time."""
    import ray

    return (f"cluster.address={ray.get_runtime_context().gcs_address}", "cluster.allow_unauthenticated=true")
