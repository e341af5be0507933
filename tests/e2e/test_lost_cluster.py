"""A submitted run that loses its cluster and is resumed on another one ends as an undisturbed one."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hamr.trainer.checkpoints import Checkpoints
from tests.e2e.finished import CHECKS
from tests.e2e.runs import COMPARED, LIGHT_RERANKER, hamr
from tests.integration.endpoints import judge_endpoint
from tests.integration.heads import Head, environment, head

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

TOKEN = "a-token-for-this-test-alone-0123456789"


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was submitted to a cluster, lost its head and all that ran there after its second step, and was
    resumed to its end on a fresh cluster, submitted there from a folder that is not the checkout."""
    cwd = tmp_path_factory.mktemp("lost")
    run = cwd / "out"
    env = environment(TOKEN)
    with judge_endpoint() as judge:
        judge.holds = (run / "checkpoints" / "step_2").is_dir  # so that it cannot end before its cluster does
        with head(env, dashboard=True) as first:
            settings = COMPARED | LIGHT_RERANKER | judge.settings | {"experiment.run_dir": run}
            sent = _submit(first, cwd, env, **settings)
            assert sent.returncode == 0, sent.stdout + sent.stderr
            deadline = time.monotonic() + 300
            while not judge.holds():
                assert time.monotonic() < deadline, f"no second step: {sent.stdout}"
                time.sleep(0.1)
        judge.holds = lambda: False
        newest = Checkpoints(run / "checkpoints").newest()
        assert newest is not None and newest.step == 2
        with head(env, dashboard=True) as second:
            done = _submit(second, cwd, env, "--follow", resume=run)
    assert done.returncode == 0, done.stdout + done.stderr
    return run


def _submit(
    cluster: Head, cwd: Path, env: dict[str, str], *flags: str, **settings: object
) -> subprocess.CompletedProcess[str]:
    where = {"cluster": "ray", "cluster.dashboard": cluster.dashboard}
    command = hamr("submit", "train", *flags, **settings | where)
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=500)


@pytest.mark.parametrize("check", CHECKS)
def test_a_resumed_run_is_whole(lost: Path, check: Callable[[Path], None]) -> None:
    check(lost)


def test_a_resumed_run_keeps_its_id_of_wandb(lost: Path) -> None:
    parts = [path.name.rpartition("-")[2] for path in (lost / "wandb").glob("offline-run-*")]
    assert parts == [(lost / "wandb" / "id").read_text().strip()] * 2, "one part from each cluster"
