"""`hamr train --multirun`: one run after the other for every combination of the values that are named."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hamr.config.load import load_config
from hamr.errors import BadInput

FLAG = "--multirun"
MOST = 500
"""Combinations that nobody means."""

Run = Callable[[list[str]], int]
"""The arguments of one `hamr train` -> its exit code."""


def sweep(args: Sequence[str], run: Run | None = None) -> int:
    """Every combination in a process of its own, all in one group of W&B. One that fails does not end the others; the
    highest exit code is returned. All configurations are checked before the first run starts."""
    given = [arg for arg in args if arg != FLAG]
    names = {arg.partition("=")[0].lstrip("+") for arg in given}
    refused = {"resume", "experiment.run_dir"} & names
    if refused:
        raise BadInput(sorted(refused)[0], FLAG, "names one run, and these are several; leave it out")
    combinations = expand(given)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    group = [] if "logging.wandb.group" in names else [f"logging.wandb.group=sweep-{stamp}"]
    runs = []
    for index, chosen in enumerate(combinations):
        config = load_config(chosen)
        folder = Path("runs") / f"{config.experiment.name}-{stamp}" / str(index)
        runs.append([*chosen, *group, f"experiment.run_dir={folder}"])
    codes = []
    for index, (chosen, wanted) in enumerate(zip(combinations, runs, strict=True)):
        print(f"run {index + 1} of {len(runs)}: {' '.join(chosen)}", flush=True)
        codes.append((run or _run)(wanted))
        if codes[-1] == 130:
            break
    failed = sum(code != 0 for code in codes)
    print(f"{len(codes) - failed} of {len(runs)} runs finished, in runs/*-{stamp}/")
    return max(codes)


def expand(args: Sequence[str]) -> list[list[str]]:
    """The overrides of every run, in the order of Hydra's own sweeps: the last one varies fastest. `key=1,2`,
    `key=range(1,4)`, `key=choice(a,b)` have several values; anything else stays as it was typed.

    >>> expand(["experiment.seed=1,2", "algorithm=grpo"])
    [['experiment.seed=1', 'algorithm=grpo'], ['experiment.seed=2', 'algorithm=grpo']]
    """
    choices = [_values(arg) for arg in args]
    if all(len(values) == 1 for values in choices):
        raise BadInput(FLAG, " ".join(args), "nothing has several values; write e.g. experiment.seed=0,1,2")
    found = [list(combination) for combination in itertools.islice(itertools.product(*choices), MOST + 1)]
    if len(found) > MOST:
        raise BadInput(FLAG, " ".join(args), f"these are more than {MOST} runs; name fewer values")
    return found


def _values(arg: str) -> list[str]:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    key, equals, _ = arg.partition("=")
    if not equals or arg.startswith("-"):
        return [arg]
    try:
        (parsed,) = OverridesParser.create().parse_overrides([arg])
    except HydraException:
        return [arg]  # no value in Hydra's grammar; what is wrong with it the run's own check says
    if not parsed.is_sweep_override():
        return [arg]
    if not parsed.is_discrete_sweep():
        raise BadInput(key, arg.partition("=")[2], "has no end of values; write a list or range(...)")
    return [f"{key}={value}" for value in parsed.sweep_string_iterator()]


def _run(args: list[str]) -> int:
    return subprocess.run([sys.executable, "-m", "hamr", "train", *args], check=False).returncode
