"""Jobs for a real cluster behind Ray's token: sent, followed, refused. The commands are processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hamr import __version__ as hamr_version
from hamr.config.load import dump_config, load_config
from hamr.telemetry.ledger import Ledger
from tests.integration.heads import Head, environment, head, holders

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

TOKEN = "a-token-for-this-test-alone-0123456789"
KEY = "sk-of-the-judge-0123456789"


@pytest.fixture(scope="module")
def there() -> Iterator[Head]:
    """A node whose environment has the judge's key."""
    with head(environment(TOKEN, JUDGE_API_KEY=KEY), dashboard=True) as started:
        yield started


@pytest.fixture
def cluster(there: Head) -> str:
    return there.dashboard


def hamr(*args: str, cwd: Path, token: str | None = TOKEN) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hamr", *args]
    env = environment(token, JUDGE_API_KEY=KEY)
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=200)


def test_a_job_is_sent_followed_and_returns_its_own_exit_code(cluster: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(dump_config(load_config(["experiment=smoke"])))
    Ledger(run / "ledger.sqlite").close()
    work = tmp_path / "work"
    work.mkdir()
    (work / "notes.txt").write_text("mine")
    (work / ".env").write_text("KEY=1")
    where = ("cluster=ray", f"cluster.dashboard={cluster}", "--follow")
    judge = {"type": "openai", "endpoint": "http://127.0.0.1:9/v1", "api_key_env": "JUDGE_API_KEY"}
    done = hamr(
        "submit", "score", f"input={run}", *(f"pools.judge.{k}={v}" for k, v in judge.items()), *where, cwd=work
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "package: 2 files" in done.stdout
    assert "excluded, because they look like keys: .env" in done.stdout
    assert f"dashboard: {cluster}/#/jobs/hamr-score-" in done.stdout
    assert "0 records replayed, 0 differ" in done.stdout, "the job's own words"
    failed = hamr("submit", "score", f"input={tmp_path}/absent.jsonl", *where, "output=/tmp/o.jsonl", cwd=work)
    assert failed.returncode == 2, "the job's own code"
    assert "absent.jsonl" in failed.stdout


@pytest.mark.parametrize(
    ("token", "changes", "says"),
    [
        (
            "another-token-that-is-wrong-0123456789",
            (),
            "rejects the token of this process; export RAY_AUTH",
        ),
        (TOKEN, ("pools.judge.replicas=500",), "pools.judge.replicas: 500: 500 x 0.5 CPU"),
        (TOKEN, ("pools.judge.engine.num_cpus=8",), "pools.judge.engine.num_cpus: 8.0: no node has that much CPU free"),
    ],
    ids=["token", "sum", "unit"],
)
def test_what_cannot_be_is_one_line(
    cluster: str, tmp_path: Path, token: str, changes: tuple[str, ...], says: str
) -> None:
    where = ("cluster=ray", f"cluster.dashboard={cluster}")
    refused = hamr("submit", "train", "experiment=smoke", *changes, *where, cwd=tmp_path, token=token)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert says in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_a_run_that_joins_with_a_wrong_token_is_refused_in_one_line(there: Head, tmp_path: Path) -> None:
    refused = hamr("train", "experiment=smoke", f"cluster.address={there.address}", cwd=tmp_path, token=TOKEN[::-1])
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "rejects the token of this process" in refused.stderr
    assert refused.stderr.count("\n") == 1, "Ray says nothing beside it"
    assert not any(tmp_path.iterdir()), "nothing was begun"


def test_a_node_with_another_hamr_is_named(there: Head, tmp_path: Path) -> None:
    """Here that of the head, the only node; the job has a version that nobody has."""
    args = ["train", "experiment=smoke", f"cluster.address={there.address}"]
    job = f"import hamr, sys; hamr.__version__ = '0.0.9'; from hamr.cli import main; sys.exit(main({args}))"
    command = [sys.executable, "-c", job]
    refused = subprocess.run(command, cwd=tmp_path, env=environment(TOKEN), capture_output=True, text=True, timeout=200)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert f": 'hamr {hamr_version}': the run itself has 0.0.9; install the same on every node" in refused.stderr
    assert refused.stderr.count("\n") == 1


def test_no_secret_travels(there: Head, tmp_path: Path) -> None:
    """After the jobs above: what they were described by, and all that their cluster wrote."""
    list_jobs = (
        "from ray.job_submission import JobSubmissionClient as C\n"
        f"jobs = C({there.dashboard!r}).list_jobs()\n"
        "print(len(jobs), [(j.entrypoint, j.runtime_env, j.metadata) for j in jobs])"
    )
    done = subprocess.run(
        [sys.executable, "-c", list_jobs], env=environment(TOKEN), capture_output=True, text=True, timeout=100
    )
    assert "working_dir" in done.stdout and "hamr" in done.stdout, done.stderr
    assert TOKEN not in done.stdout and KEY not in done.stdout
    assert len(list(there.folder.rglob("submitted.yaml"))) >= 1, "the jobs' packages are among what is searched"
    assert holders(there.folder, TOKEN) + holders(there.folder, KEY) == []
