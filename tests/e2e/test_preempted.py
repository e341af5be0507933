"""Runs that are stopped, or end on a full disk, and are resumed: they leave no process and keep finished steps."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from hamr.apps.shared.commands import parse_command
from hamr.telemetry.ledger import Ledger
from hamr.telemetry.live import LiveStatus
from hamr.telemetry.metrics import read_metrics
from hamr.trainer.checkpoints import Checkpoints
from tests.e2e.runs import hamr
from tests.integration.endpoints import scorer_endpoint
from tests.killing import children, kill_all, still_there

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SETTINGS = {
    "experiment": "smoke",
    "experiment.steps": 1000,
    "experiment.sft.steps": 8,
    "logging.console": True,
    "cluster.allow_unauthenticated": True,
    "experiment.run_dir": "run",
    "algorithm.dynamic_sampling.enabled": False,
}


@contextlib.contextmanager
def running(
    cwd: Path, until: str, env: Mapping[str, str] = os.environ, **settings: object
) -> Iterator[subprocess.Popen[str]]:
    """Start a run and wait until it has printed `until`. It leaves no process behind in any case."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        hamr("train", **settings), cwd=cwd, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    assert process.stdout is not None
    try:
        assert any(until in line for line in process.stdout), process.communicate()[1]
        yield process
    finally:
        if process.poll() is None:
            family = children(psutil.Process(process.pid))
            process.kill()
            kill_all(family)


def stop(process: subprocess.Popen[str], signum: int) -> tuple[int, str]:
    """Send one signal to the whole process group, as a terminal, Slurm or a container's init process does. Return the
    exit code and the errors. Nothing that the run has started is left.
    """
    family = children(psutil.Process(process.pid)) + actors_of_session()
    assert family
    os.killpg(process.pid, signum)
    _, err = process.communicate(timeout=100)
    assert still_there(family, 30) == []
    pids = {str(child.pid) for child in family}
    assert not [file for file in Path("/dev/shm").glob("hamr-weights-*") if file.name.split("-")[3] in pids]
    return process.returncode, err


def actors_of_session() -> list[psutil.Process]:
    """Return the actors of a run that has joined this session's Ray, which are not descendants of the run."""
    kinds = ("ray::TrainerRank", "ray::RolloutWorker", "ray::RouterActor", "ray::ServeReplica")
    return [p for p in children(psutil.Process()) if any(word.startswith(kinds) for word in _command_line(p))]


def _command_line(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


@pytest.fixture
def settings() -> Iterator[dict[str, object]]:
    with scorer_endpoint() as scorers:
        yield SETTINGS | scorers.judge


def test_run_stops_while_it_starts(tmp_path: Path, settings: dict[str, object]) -> None:
    with running(tmp_path, "] start ...", **settings) as process:
        code, err = stop(process, signal.SIGINT)
    assert (code, err) == (130, f"hamr: stopped by Ctrl-C; continue with: hamr train resume={tmp_path / 'run'}\n")


@pytest.mark.deep
def test_sigterm_to_ray_too_keeps_the_step(tmp_path: Path, settings: dict[str, object]) -> None:
    with running(tmp_path, "rl step 2/", **settings) as process:
        code, err = stop(process, signal.SIGTERM)
    newest = Checkpoints(tmp_path / "run" / "checkpoints").newest()
    assert newest is not None and newest.step >= 2
    resume = f"continue with: hamr train resume={tmp_path / 'run'}"
    assert (code, err) == (0, f"hamr: stopped by SIGTERM, step {newest.step} of 1000 is kept; {resume}\n")


@pytest.mark.deep
def test_killed_driver_is_restarted_and_ends(tmp_path: Path, settings: dict[str, object]) -> None:
    run = tmp_path / "run"
    few = {"experiment.steps": 12, "experiment.max_restarts": 1, "experiment.checkpoint.every": 1}
    few["experiment.checkpoint.asynchronous"] = True
    with running(tmp_path, "rl step 2/", **settings | few) as process:
        while (seen := LiveStatus.read(run)) is None or seen.phase != "rl":
            time.sleep(0.2)
        assert seen.pid != process.pid
        os.kill(seen.pid, signal.SIGKILL)
        _, err = process.communicate(timeout=250)
    assert (process.returncode, err) == (0, "hamr: the run was killed by signal 9; restart 1 of 1\n")
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["step"] for row in rows if row["stage"] == "rl"] == list(range(1, 13)), "no step is lost or done twice"


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_asynchronous_run_resumes_with_its_groups_in_flight(tmp_path: Path, settings: dict[str, object]) -> None:
    """A resumed run repeats the groups that no step had taken, under the same keys, and records them once."""
    run, age = tmp_path / "run", {"experiment.asynchrony.max_policy_age": 2, "experiment.checkpoint.every": 1}
    with running(tmp_path, "rl step 4/", **settings | age) as process:
        assert stop(process, signal.SIGTERM)[0] == 0
    first = Checkpoints(run / "checkpoints").newest()
    assert first is not None and 2 * 2 <= len(first.state["unfinished"]) <= 3 * 2
    repeated = {(draw["step"], draw["prompt"], draw["attempt"]) for draw in first.state["unfinished"]}
    with running(tmp_path, f"rl step {first.step + 5}/", resume=run) as process:
        assert process.stdout is not None
        # Later groups may overtake those that wait for a judge's first batch.
        assert any(repeated <= set(recorded_groups(run)) for line in process.stdout if "rl step" in line)
        assert stop(process, signal.SIGTERM)[0] == 0
    last = Checkpoints(run / "checkpoints").newest()
    assert last is not None and last.step >= first.step + 5
    assert repeated <= check_groups(run, last.step)
    ages = [row["rollout/policy_age/max"] for row in read_metrics(run / "metrics.jsonl") if row["stage"] == "rl"]
    assert 1 <= max(ages) <= 2


@pytest.mark.deep
def test_groups_of_a_killed_rollout_worker_are_sampled_again_once(tmp_path: Path, settings: dict[str, object]) -> None:
    age = {"experiment.asynchrony.max_policy_age": 1, "experiment.steps": 8}
    with running(tmp_path, "rl step 3/", **settings | age) as process:
        family = children(psutil.Process(process.pid))
        [worker] = [p for p in family if any(word.startswith("ray::RolloutWorker") for word in _command_line(p))]
        worker.kill()
        _, err = process.communicate(timeout=250)
    assert process.returncode == 0, err
    check_groups(tmp_path / "run", 8)


FULL_DISK = """
set -e
mkdir disk; mount -t tmpfs -o size=200m tmpfs disk
"$@" 2> errors & run=$!
until [ "$(grep -c '"stage": "rl"' disk/run/metrics.jsonl)" -ge 2 ]; do kill -0 $run; sleep 0.2; done 2> /dev/null
dd if=/dev/zero of=disk/fill bs=1M 2> /dev/null || true
wait $run || echo $? > code
rm disk/fill
cp -r disk/run full
"$1" -m hamr train resume=disk/run
cp -r disk/run resumed
"""
"""Fills the disk of a run after two steps, makes room again after its end, and resumes it."""


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_run_on_a_full_disk_ends_and_resumes(tmp_path: Path, settings: dict[str, object]) -> None:
    """The disk is of a mount namespace, which not every machine lets a user make."""
    own = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*own, "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True).returncode:
        pytest.skip("needs user namespaces")
    few = {"experiment.run_dir": "disk/run", "experiment.steps": 8, "logging.console": False}
    script = [*own, "bash", "-c", FULL_DISK, "bash", *hamr("train", **settings | few)]
    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True)
    assert (tmp_path / "code").read_text() == "1\n", done.stderr
    lines = (tmp_path / "errors").read_text().splitlines()
    assert lines[-1].startswith("hamr: ") and "no space left on the disk; free some" in lines[-1]
    assert len(lines) <= 3, "and one each for the status and the logs of Ray"
    assert (done.returncode, done.stderr) == (0, "")
    steps = [row["step"] for row in read_metrics(tmp_path / "resumed" / "metrics.jsonl") if row["stage"] == "rl"]
    assert steps == list(range(1, 9))


def recorded_groups(run: Path) -> Counter[tuple[int, str, int]]:
    """Return the number of records of each group's key."""
    with Ledger(run / "ledger.sqlite", readonly=True) as ledger:
        return Counter(ledger.query("SELECT step, prompt, attempt FROM records WHERE run NOT LIKE '%/%'"))


def check_groups(run: Path, steps: int) -> set[tuple[int, str, int]]:
    """Check that every group is recorded once, and that each step trains on two. Return the keys of the groups."""
    found = recorded_groups(run)
    assert set(found.values()) == {2}, "two responses to every prompt"
    with Ledger(run / "ledger.sqlite", readonly=True) as ledger:
        [(trained,)] = ledger.query("SELECT count(*) FROM records WHERE run NOT LIKE '%/%' AND outcome != 'stale'")
    assert trained == 2 * 2 * steps, "a step trains on two groups of two"
    return set(found)


@pytest.mark.deep
def test_run_stops_in_two_phases_and_resumes(
    tmp_path: Path, settings: dict[str, object], joined: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """With RAY_ADDRESS set, a new run starts its own Ray, and a resumed one joins that cluster, as in its job."""
    run, address = tmp_path / "run", joined[0].partition("=")[2]
    resume = f"continue with: hamr train resume={run}"
    env = os.environ | {"RAY_ADDRESS": address}
    with running(tmp_path, "sft step 2/", env, **settings) as process:
        code, err = stop(process, signal.SIGINT)
    kept = Checkpoints(run / "checkpoints" / "warm_up").newest()
    assert kept is not None and kept.step >= 2
    assert (code, err) == (130, f"hamr: stopped by Ctrl-C in the warm-up, step {kept.step} of 8 is kept; {resume}\n")

    with running(tmp_path, "rl step 2/", env, resume=run) as process:
        assert len(actors_of_session()) >= 3, "the run has joined"
        # The status file is written every few seconds.
        while (seen := LiveStatus.read(run)) is None or seen.phase != "rl":
            time.sleep(0.2)
        assert seen.alive()
        assert len(seen.pools["judge"]["pids"]) == 1
        code, err = stop(process, signal.SIGTERM)
    newest = Checkpoints(run / "checkpoints").newest()
    assert newest is not None and newest.step >= 2
    assert (code, err) == (0, f"hamr: stopped by SIGTERM, step {newest.step} of 1000 is kept; {resume}\n")
    _check_folder(run, newest.step, newest.state["stream"])
    assert parse_command(["status", str(run)]).run() == 0
    assert "preempted" in capsys.readouterr().out


def _check_folder(run: Path, step: int, stream: dict[str, int]) -> None:
    """Check that the two processes add up to one run."""
    # Two prompts a step from epochs of 24: what a dropped step had taken is not counted as used.
    assert 24 * stream["epoch"] + stream["index"] == 2 * step
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["step"] for row in rows if row["stage"] == "sft"] == list(range(1, 9)), "no step twice"
    assert [row["stage"] for row in rows if row["stage"].startswith("eval")] == ["eval-base", "eval-sft"]
    assert not (run / "checkpoints" / "warm_up").exists()
