"""Restarts of a run whose driver or one of whose engines died (`experiment.max_restarts`), or whose whole cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from hamr import signals
from hamr.apps.shared.child_process import start_hamr
from hamr.apps.shared.commands import render
from hamr.apps.shared.preparation import run_path
from hamr.apps.shared.training_job import DIED, SUPERVISED
from hamr.config.custom import function_arguments
from hamr.errors import HamrError, RunFolderError
from hamr.telemetry.run_folder import discard_lock

if TYPE_CHECKING:
    from hamr.apps.shared.training_job import Job
    from hamr.apps.train.command import TrainCommand

JOB = "HAMR_JOB"
"""Set to a name of its own for a job that a cluster starts again, on new nodes, after a failure."""
ENDED = "ended\n"


def run_again(command: TrainCommand, run: Callable[[TrainCommand], int]) -> int:
    """Run the first start of a job that `JOB` names, and resume its run at every other start.

    A file next to the run folder says that the job has started, and later that it ended for a reason that another start
    would not mend, such as bad input: then it is not run again. The first start of another job does not find the
    file, so it is refused a folder that is in use.

    Raises RunFolderError for a job that has ended.
    """
    config = None if command.resume else command.check()
    folder = command.resume if config is None else run_path(config.experiment)
    assert folder is not None, "a command without a run to resume has a configuration"
    mark = folder.with_name(f"{folder.name}.{os.environ[JOB]}")
    if mark.exists():
        if mark.read_text() == ENDED:
            raise RunFolderError("experiment.run_dir", str(folder), "ended with an error before; see the first start")
        if (folder / "config.yaml").is_file():
            # The nodes of the earlier start are gone, and with them the owner of its lock.
            discard_lock(folder)
            if config is not None:
                functions = tuple(function_arguments(config.functions))
                command = command.model_copy(update={"resume": folder, "overrides": functions})
    else:
        folder.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    try:
        code = run(command)
    except HamrError:
        mark.write_text(ENDED)
        raise
    if 0 < code < 128 and signals.pending_signal() is None:
        mark.write_text(ENDED)
    return code


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
    child = start_hamr(words, {SUPERVISED: "1"})
    with signals.handle_signals(child.send_signal, limit_s=None):
        return child.wait()
