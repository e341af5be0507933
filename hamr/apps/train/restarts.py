"""Restarts of a run whose driver or one of whose engines died (`experiment.max_restarts`)."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from hamr import signals
from hamr.apps.shared.child_process import end_with_parent
from hamr.apps.shared.commands import render
from hamr.config.custom import function_arguments

if TYPE_CHECKING:
    from hamr.apps.train.command import TrainCommand
    from hamr.apps.train.run import Job

SUPERVISED = "HAMR_SUPERVISED"
"""Set in the environment of a run that is restarted from outside."""
DIED = 75
"""Exit code of such a run if one of its processes died, so that a restart may help."""


def supervise(command: TrainCommand, job: Job) -> int:
    """Run the job as a process, and resume it after a death, up to `experiment.max_restarts` times.

    A run that fails for another reason is not restarted. Signals go to the run, whose exit code is returned; 1 for the
    last death.
    """
    limit, words = job.config.experiment.max_restarts, render(command)
    if command.resume is None and job.config.experiment.run_dir is None:
        words.append(f"experiment.run_dir={job.path.absolute()}")
    for restart in range(1, limit + 2):
        code = _run(words)
        if signals.pending_signal() is not None:
            if code < 0:  # killed by this signal
                return 128 - code
            return 1 if code == DIED else code
        if code != DIED and code >= 0:
            return code
        how = "a process of the run died" if code == DIED else f"the run was killed by signal {-code}"
        if restart > limit:
            print(
                f"hamr: {how}; restarted {limit} times already (experiment.max_restarts)", file=sys.stderr, flush=True
            )
            break
        print(f"hamr: {how}; restart {restart} of {limit}", file=sys.stderr, flush=True)
        if (job.path / "config.yaml").is_file():
            words = ["train", f"resume={job.path.absolute()}", *function_arguments(job.config.functions)]
    return 1


def _run(words: list[str]) -> int:
    """Run `hamr <words>` until it ends; negative exit codes are signals that killed it."""
    child = subprocess.Popen(
        [sys.executable, "-m", "hamr", *words],
        env={**os.environ, SUPERVISED: "1", signals.FORWARDED: "1"},
        preexec_fn=end_with_parent,
        process_group=0,
    )
    with signals.handle_signals(child.send_signal, limit_s=None):
        return child.wait()
