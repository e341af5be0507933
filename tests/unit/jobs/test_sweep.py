"""`hamr train --multirun`."""

from __future__ import annotations

import pytest

from hamr.errors import BadInput, ConfigError
from hamr.jobs.sweep import expand, sweep


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
def test_every_combination_is_a_run(args: list[str], runs: list[list[str]]) -> None:
    assert expand(args) == runs


def test_runs_share_a_group_and_have_folders_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    started: list[list[str]] = []

    def run(args: list[str]) -> int:
        started.append(args)
        return len(started) - 1  # the second one fails

    assert sweep(["experiment=smoke", "--multirun", "experiment.seed=3,4"], run) == 1
    assert [args[:2] for args in started] == [["experiment=smoke", f"experiment.seed={i}"] for i in (3, 4)]
    groups = {arg for args in started for arg in args if arg.startswith("logging.wandb.group=sweep-")}
    folders = {arg for args in started for arg in args if arg.startswith("experiment.run_dir=runs/smoke-")}
    assert (len(groups), len(folders)) == (1, 2)
    assert "1 of 2 runs finished" in capsys.readouterr().out


def test_an_interrupted_sweep_goes_no_further() -> None:
    started: list[list[str]] = []
    assert sweep(["experiment=smoke", "experiment.seed=0,1,2"], lambda args: started.append(args) or 130) == 130
    assert len(started) == 1


def test_a_mistake_in_any_of_them_starts_none() -> None:
    def never(args: list[str]) -> int:
        raise AssertionError(args)

    with pytest.raises(ConfigError, match="algorithm"):
        sweep(["experiment=smoke", "algorithm=grpo,ppo"], never)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["experiment=smoke"], "nothing has several values"),
        (["experiment.seed=range(1000)"], "more than 500 runs"),
        (["trainer.learning_rate=interval(0,1)"], "has no end of values"),
        (["resume=runs/x", "experiment.seed=0,1"], "resume: .*names one run"),
        (["experiment.run_dir=x", "experiment.seed=0,1"], "names one run"),
    ],
)
def test_bad_input_is_said(args: list[str], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        sweep(["--multirun", *args], lambda args: 0)
