"""Restarts of a run whose processes died."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from hamr.apps.shared.training_job import DIED, Job
from hamr.apps.train import restarts
from hamr.apps.train.command import TrainCommand
from hamr.apps.train.restarts import supervise
from hamr.errors import RunFolderError


def run_with(
    codes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str, begun: bool = True
) -> tuple[int, list[list[str]]]:
    """Supervise a run whose processes end with these codes. Return the exit code and the commands."""
    monkeypatch.chdir(tmp_path)
    asked: list[list[str]] = []
    left = iter(codes)

    def end(words: list[str]) -> int:
        asked.append(words)
        return next(left)

    monkeypatch.setattr(restarts, "_run", end)
    command = TrainCommand.model_validate({"overrides": ["experiment=smoke", *overrides]})
    job = Job.of(command)
    if begun:
        job.path.mkdir(parents=True)
        (job.path / "config.yaml").touch()
    return supervise(command, job), asked


def test_dead_run_is_resumed_until_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, asked = run_with([DIED, -9, 0], tmp_path, monkeypatch, "experiment.max_restarts=2")
    assert code == 0
    first, *resumed = asked
    assert first[:2] == ["train", "experiment=smoke"]
    folder = first[-1].removeprefix("experiment.run_dir=")
    assert Path(folder).is_relative_to(tmp_path / "runs"), "the folder is chosen once"
    assert resumed == [["train", f"resume={folder}"]] * 2
    assert capfd.readouterr().err == (
        "hamr: a process of the run died; restart 1 of 2\nhamr: the run was killed by signal 9; restart 2 of 2\n"
    )


def test_restarts_have_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    code, asked = run_with([DIED, DIED], tmp_path, monkeypatch, "experiment.max_restarts=1")
    assert (code, len(asked)) == (1, 2)
    assert capfd.readouterr().err.endswith("restarted 1 times already (experiment.max_restarts)\n")


@pytest.mark.parametrize("code", [0, 1, 2, 130])
def test_other_ends_are_final(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, asked = run_with([code], tmp_path, monkeypatch, "experiment.max_restarts=3")
    assert (ended, len(asked)) == (code, 1)


@pytest.mark.parametrize(("code", "told"), [(-9, 137), (DIED, 1), (130, 130)])
def test_stopped_run_is_not_restarted(code: int, told: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts.signals, "pending_signal", lambda: signal.SIGTERM)
    ended, asked = run_with([code], tmp_path, monkeypatch, "experiment.max_restarts=3")
    assert (ended, len(asked)) == (told, 1)


def test_run_that_died_before_its_first_file_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = ("experiment.max_restarts=1", "experiment.run_dir=here")
    code, asked = run_with([-9, 0], tmp_path, monkeypatch, *overrides, begun=False)
    assert code == 0
    assert asked == [["train", "experiment=smoke", *overrides]] * 2


def of_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch, job: str, code: int = -9) -> list[TrainCommand]:
    """Start a job of a cluster whose run ends with this code. Return what was run."""
    monkeypatch.setenv(restarts.JOB, job)
    asked: list[TrainCommand] = []

    def run(command: TrainCommand) -> int:
        asked.append(command)
        return code

    words = ["experiment=smoke", f"experiment.run_dir={folder}"]
    restarts.run_again(TrainCommand.model_validate({"overrides": words}), run)
    return asked


def test_job_that_its_cluster_starts_again_resumes_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "runs" / "one"
    [first] = of_cluster(folder, monkeypatch, "a")
    assert first.resume is None
    [again] = of_cluster(folder, monkeypatch, "a")
    assert again.resume is None, "the first start ended before it had a configuration"
    folder.mkdir()
    for file in ("config.yaml", "run.lock"):
        (folder / file).touch()
    [again] = of_cluster(folder, monkeypatch, "a")
    assert (again.resume, again.overrides) == (folder, ())
    assert not (folder / "run.lock").exists(), "its owner was on the cluster that is gone"


def test_another_job_does_not_take_a_run_that_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    for file in ("config.yaml", "run.lock"):
        (folder / file).touch()
    [first] = of_cluster(folder, monkeypatch, "b")
    assert first.resume is None and (folder / "run.lock").exists()


@pytest.mark.parametrize("code", [1, 2])
def test_job_with_an_error_is_not_run_again(code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_cluster(tmp_path / "one", monkeypatch, "a", code)
    with pytest.raises(RunFolderError, match="ended with an error before"):
        of_cluster(tmp_path / "one", monkeypatch, "a")
