"""`--multirun` of `hamr train` and `hamr sft`: one run for every combination of the given values, in sequence."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from hamr.apps.pipeline.plan import PipelinePlan, PipelineStage
from hamr.apps.pipeline.run import RunProcess, work_off
from hamr.apps.shared.commands import parse_command
from hamr.config.load import sweep_values
from hamr.config.overrides import MULTIRUN
from hamr.errors import BadInput

if TYPE_CHECKING:
    from hamr.apps.pipeline.command import TrainSweep

MOST = 500
"""Upper limit of combinations; more are assumed to be a mistake."""


def sweep(command: TrainSweep, run: RunProcess | None = None) -> int:
    """Run every combination in its own process and run folder, all in one folder and one W&B group.

    All configurations are checked before the first run starts. A failed run does not stop the others; the first
    failure's exit code is returned. After an interruption, `resume=<folder>` runs the unfinished combinations.
    """
    plan = plan_sweep(command)
    plan.check_places()
    plan.create()
    return work_off(plan, run)


def plan_sweep(command: TrainSweep) -> PipelinePlan:
    """Return the runs as independent stages. Raises BadInput or ConfigError as the single run would."""
    job: Literal["train", "sft"] = "sft" if command.words.startswith("sft") else "train"
    names = {arg.partition("=")[0].lstrip("+") for arg in command.overrides}
    if "experiment.run_dir" in names:
        raise BadInput("experiment.run_dir", MULTIRUN, "names one run, but these are several; remove it")
    combinations = expand(command.overrides)
    configs = [parse_command([job, *chosen]).check() for chosen in combinations]
    name = next(config.experiment.name for config in configs if config is not None)
    root = next(config.cluster.run_root for config in configs if config is not None)
    folder = (Path(root or "runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}").absolute()
    group = () if "logging.wandb.group" in names else (f"logging.wandb.group=sweep-{folder.name}",)
    varied = {arg for chosen in combinations for arg in chosen if any(arg not in other for other in combinations)}
    titles = [" ".join(arg for arg in chosen if arg in varied) for chosen in combinations]
    stages = tuple(
        PipelineStage(number=number, name=title, job=job, args=(*chosen, *group), folder=folder / str(number - 1))
        for number, (title, chosen) in enumerate(zip(titles, combinations, strict=True), start=1)
    )
    checked = {title: config for title, config in zip(titles, configs, strict=True) if config is not None}
    return PipelinePlan(
        name=name, folder=folder, keep="all", inputs={}, stages=stages, configs=checked, independent=True
    )


def expand(args: Sequence[str]) -> list[list[str]]:
    """Return the overrides of every run in the order of Hydra's own sweeps: the last one varies fastest.

    `key=1,2`, `key=range(1,4)` and `key=choice(a,b)` have several values; anything else is passed through.

    >>> expand(["experiment.seed=1,2", "algorithm=grpo"])
    [['experiment.seed=1', 'algorithm=grpo'], ['experiment.seed=2', 'algorithm=grpo']]
    """
    choices = [list(dict.fromkeys(sweep_values(arg, MOST))) for arg in args]
    if all(len(values) == 1 for values in choices):
        raise BadInput(MULTIRUN, " ".join(args), "nothing has several values; write e.g. experiment.seed=0,1,2")
    if math.prod(map(len, choices)) > MOST:
        raise BadInput(MULTIRUN, " ".join(args), f"more than {MOST} runs; give fewer values")
    return [list(chosen) for chosen in itertools.product(*choices)]
