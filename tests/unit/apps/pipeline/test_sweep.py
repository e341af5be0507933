"""`--multirun` of `hamr train` and `hamr sft`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest

from hamr.apps.pipeline.command import TrainSweep
from hamr.apps.pipeline.run import RunProcess, resume
from hamr.apps.pipeline.sweep import expand
from hamr.apps.pipeline.sweep import sweep as sweep_of
from hamr.apps.shared.commands import parse_command
from hamr.apps.train.command import TrainCommand
from hamr.config.load import dump_config, load_config
from hamr.errors import BadInput, ConfigError

CONFIG = dump_config(load_config(["experiment=smoke"]))


@pytest.mark.parametrize(
    ("args", "runs"),
    [
        (
            ["experiment.seed=0,1", "algorithm=dapo,grpo"],
            [["experiment.seed=0", "algorithm=dapo"], ["experiment.seed=0", "algorithm=grpo"],
             ["experiment.seed=1", "algorithm=dapo"], ["experiment.seed=1", "algorithm=grpo"]],
        ),
        (["experiment.seed=range(1,4)"], [["experiment.seed=1"], ["experiment.seed=2"], ["experiment.seed=3"]]),
        (["model=tiny", "trainer.learning_rate=choice(1e-5,1e-4)"],
         [["model=tiny", "trainer.learning_rate=1e-05"], ["model=tiny", "trainer.learning_rate=0.0001"]]),
        # A list is one value, and so is a text in quotes.
        (["trainer.betas=[0.8,0.9]", "experiment.name='a,b'", "experiment.seed=0,1"],
         [["trainer.betas=[0.8,0.9]", "experiment.name='a,b'", f"experiment.seed={i}"] for i in (0, 1)]),
    ],
)  # fmt: skip
def test_every_combination_becomes_a_run(args: list[str], runs: list[list[str]]) -> None:
    assert expand(args) == runs


def test_repeated_values_neither_repeat_nor_hide_runs() -> None:
    expected = [[f"experiment.seed={i}", "trainer.ranks=1"] for i in range(300)]
    assert expand(["experiment.seed=range(300)", "trainer.ranks=1,1"]) == expected


def sweep(args: Sequence[str], job: Literal["train", "sft"] = "train", run: RunProcess | None = None) -> int:
    command = parse_command([job, "--multirun", *args])
    assert isinstance(command, TrainSweep)
    return sweep_of(command, run) if command.resume is None else resume(command.resume, run)


class Runs:
    """Scripted processes: record the started runs, write the files of a run, and fail where configured."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)
        self.started: list[list[str]] = []

    def __call__(self, args: Sequence[str]) -> int:
        self.started.append(list(args))
        folder = next(Path(arg.partition("=")[2]) for arg in args if arg.startswith(("experiment.run_dir=", "resume=")))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.yaml").write_text(CONFIG)
        code = self.codes.pop(0) if self.codes else 0
        if not code:
            (folder / "summary.json").write_text("{}")
        return code


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("job", ["train", "sft"])
def test_runs_share_a_group_and_have_separate_folders(
    job: Literal["train", "sft"], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, given = Runs(0, 3, 0), ["experiment=smoke", "sft.sets=[{path: a}]", "experiment.seed=3,4,5"]
    assert sweep(given, job, runs) == 3, "one that fails does not end the others"
    assert [args[0] for args in runs.started] == [job] * 3
    assert [args[3] for args in runs.started] == [f"experiment.seed={i}" for i in (3, 4, 5)]
    (folder,) = (here / "runs").iterdir()
    groups = {arg for args in runs.started for arg in args if arg.startswith("logging.wandb.group=sweep-")}
    assert groups == {f"logging.wandb.group=sweep-{folder.name}"}
    assert [args[-1] for args in runs.started] == [f"experiment.run_dir={folder}/{i}" for i in range(3)]
    said = capsys.readouterr()
    assert "2 of 3 runs finished" in said.out
    assert (
        f"run 2 of 3, experiment.seed=4 failed with exit code 3; continue with: hamr train resume={folder}" in said.err
    )
    assert "2 of 3 runs finished. experiment.seed=4 failed." in (folder / "report.html").read_text()


def test_stopped_sweep_resumes_unfinished_runs(here: Path) -> None:
    given = ["experiment=smoke", "experiment.seed=0,1,2"]
    stopped = Runs(0, 130)
    assert sweep(given, run=stopped) == 130
    assert len(stopped.started) == 2
    (folder,) = (here / "runs").iterdir()
    again = Runs()
    assert isinstance(parse_command(["train", f"resume={folder}"]), TrainCommand), "without the flag, too"
    assert sweep([f"resume={folder}"], run=again) == 0
    assert again.started[0] == ["train", f"resume={folder}/1"]
    assert (again.started[1][2], len(again.started)) == ("experiment.seed=2", 2)


def test_failed_run_does_not_stop_a_resumed_sweep(here: Path) -> None:
    assert sweep(["experiment=smoke", "experiment.seed=0,1,2"], run=Runs(130)) == 130
    (folder,) = (here / "runs").iterdir()
    again = Runs(3, 0, 0)
    assert sweep([f"resume={folder}"], run=again) == 3
    assert len(again.started) == 3


def test_duplicate_runs_are_started_once(here: Path) -> None:
    runs = Runs()
    assert sweep(["experiment=smoke", "experiment.seed=1,1,2"], run=runs) == 0
    assert len(runs.started) == 2


def test_mistake_in_any_run_prevents_the_start(here: Path) -> None:
    runs = Runs()
    with pytest.raises(ConfigError, match="algorithm"):
        sweep(["experiment=smoke", "algorithm=grpo,ppo"], run=runs)
    assert not runs.started
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["experiment=smoke"], "nothing has several values"),
        (["experiment.seed=range(1000)"], "more than 500 runs"),
        (["experiment.seed=range(0,300000000)"], "more than 500 runs"),
        (["experiment.seed=shuffle(range(0,300000000))"], "more than 500 runs"),
        (["experiment.seed=range(30)", "trainer.max_bad_steps=range(1,31)"], "more than 500 runs"),
        (["experiment.seed=range(0,3,0)"], "cannot be expanded; write a list"),
        (["experiment.seed=range(3,0)"], "cannot be expanded; write a list"),
        (["experiment=glob(*)"], "cannot be expanded; write a list"),
        (["trainer.learning_rate=interval(0,1)"], "has infinitely many values"),
        (["resume=runs/x", "experiment.seed=0,1"], "resume: .*keeps its configuration"),
        (["resume=runs/x"], r"resume: .*pipeline\.json cannot be read"),
        (["experiment.run_dir=x", "experiment.seed=0,1"], "names one run"),
    ],
)
def test_bad_input_is_reported(args: list[str], said: str, here: Path) -> None:
    with pytest.raises(BadInput, match=said):
        sweep([*args], run=Runs())
