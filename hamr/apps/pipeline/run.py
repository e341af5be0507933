"""`hamr train pipeline=...`: runs the stages in sequence, each as a normal command in its own process and folder.

The runs of `--multirun` are stages that need no other.

    <folder>/pipeline.json    the stages with their arguments, and the user's arguments
    <folder>/events.jsonl     a row when a stage starts, and one when it ends
    <folder>/<n>-<stage>/     the stage's own folder
    <folder>/report.html      the outputs of the stages

The end of a stage's process releases its memory, its Ray and its engines. After an interruption at any point, `hamr
train resume=<folder>` keeps the finished stages and resumes the unfinished one.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hamr import signals
from hamr.apps.pipeline.jobs import POLICY, is_run, policy_of
from hamr.apps.pipeline.log import LOCK, PipelineLog
from hamr.apps.pipeline.plan import PipelinePlan, PipelineStage, plan_pipeline
from hamr.apps.pipeline.report import write_pipeline_report
from hamr.apps.shared.child_process import start_hamr
from hamr.apps.shared.commands import render
from hamr.apps.shared.preemption import stop_error
from hamr.apps.shared.training_command import changes_hardware
from hamr.config.custom import function_arguments, names_function
from hamr.config.load import ALLOWED_FUNCTIONS, load_dumped
from hamr.config.overrides import expand_env
from hamr.errors import Preempted, RunFolderError
from hamr.files import try_lock
from hamr.security.processes import has_ended, identity, is_visible
from hamr.telemetry.run_folder import owner_of

if TYPE_CHECKING:
    from hamr.apps.pipeline.command import RunPipeline

STAGE_ENDS_S = 60.0
"""Longest wait for the stage of a killed pipeline. A step that runs may take most of it."""
INTERRUPTED = 130
"""Exit code after Ctrl-C."""

RunProcess = Callable[[Sequence[str]], int]
"""Runs the arguments of one `hamr` command and returns its exit code."""


def start(command: RunPipeline, run: RunProcess | None = None) -> int:
    """Check every stage, then run them."""
    plan = plan_pipeline(command)
    if command.dry_run:
        print("\n".join(describe_plan(plan)))
        return 0
    plan.check_places()
    plan.create()
    return work_off(plan, run)


def resume(folder: Path, run: RunProcess | None = None, *, functions: Sequence[str] = ()) -> int:
    """Run the stages of a pipeline's folder that have not finished.

    The commands of the stages come from the folder, which cannot name code: only `functions` are executed, the
    arguments of the command line with the paths of reward functions.
    """
    if changed := [arg for arg in functions if changes_hardware(arg)]:
        raise RunFolderError("resume", changed, "the stages of a pipeline keep their hardware; remove it")
    return work_off(PipelinePlan.load(folder), run, allowed=[arg.partition("=")[2] for arg in functions])


def work_off(plan: PipelinePlan, run: RunProcess | None = None, *, allowed: Sequence[str] | None = None) -> int:
    """Run the unfinished stages of a created plan, with an exclusive lock on its folder.

    `allowed` are the functions that a stage may execute, None for all.
    """
    # No limit on signals here: a stage bounds its own end.
    with _lock_folder(plan.folder) as started, signals.handle_signals(limit_s=None):
        return run_stages(plan, run or partial(_run, started=started, allowed=allowed))


def describe_plan(plan: PipelinePlan) -> list[str]:
    """Return the stages and their commands, in shell syntax."""
    lines = [f"pipeline {plan.name}: {len(plan.stages)} stages, folder {plan.folder}"]
    for stage in plan.stages:
        takes = ", ".join(f"{name}.{output}" for name, output in stage.takes)
        lines.append(f"{stage.number}. {stage.name}" + (f" (takes {takes})" if takes else ""))
        lines.append(f"   hamr {shlex.join(render(stage.command(plan.paths(planned=True))))}")
    return lines


def run_stages(plan: PipelinePlan, run: RunProcess) -> int:
    """Return 0, or the exit code of the first stage that fails.

    Stages after a failed one do not start, unless the stages are independent.
    """
    log = PipelineLog(plan.folder)
    given = (expand_env(arg) for stage in plan.stages for arg in stage.args)
    functions = dict.fromkeys(arg for arg in given if names_function(arg))
    go_on = f"continue with: hamr {shlex.join(['train', f'resume={plan.folder}', *functions])}"
    kind, whole_thing = ("run", "multirun") if plan.independent else ("stage", "pipeline")
    print(f"{whole_thing} {plan.name}: {len(plan.stages)} {kind}s, folder {plan.folder}", flush=True)
    failures: list[int] = []
    for stage in plan.stages:
        title = f"{kind} {stage.number} of {len(plan.stages)}, {stage.name}"
        if log.is_finished(stage.name):
            print(f"{title}: finished earlier", flush=True)
            continue
        args = prepare_command(stage, plan)
        print(f"{title}: hamr {shlex.join(args)}", flush=True)
        log.begin(stage.name, args)
        begun = time.monotonic()
        try:
            code = run(args)
        except (KeyboardInterrupt, SystemExit) as error:
            log.end(stage.name, "stopped", time.monotonic() - begun)
            write_pipeline_report(plan.folder)
            if (signum := signals.signal_of(error)) is None:
                raise
            raise stop_error(f" in {title}; {go_on}", signum) from None
        # A preempted run also exits with 0; only a completed run has a summary.
        whole = code == 0 and (not is_run(stage.kind) or (stage.folder / "summary.json").is_file())
        log.end(
            stage.name, "finished" if whole else "stopped" if code == 0 else "failed", time.monotonic() - begun, code
        )
        if whole and plan.keep == "policy":
            trim(stage)
        write_pipeline_report(plan.folder)
        if code:
            print(f"{title} failed with exit code {code}; {go_on}", file=sys.stderr, flush=True)
            failures.append(code if code > 0 else 128 - code)  # the shell's convention for a process ended by a signal
            if not plan.independent or failures[-1] == INTERRUPTED:
                return failures[-1]
        elif not whole:
            raise Preempted(f"{title} was stopped before its end; {go_on}")
    if plan.independent:
        print(f"{len(plan.stages) - len(failures)} of {len(plan.stages)} runs finished")
    print(f"report: {plan.folder / 'report.html'}")
    return failures[0] if failures else 0


def prepare_command(stage: PipelineStage, plan: PipelinePlan) -> list[str]:
    """Return the words of a stage's command, or of the one that resumes it where an earlier process left results."""
    if is_run(stage.kind):
        if (stage.folder / "config.yaml").is_file():
            functions = function_arguments(load_dumped(stage.folder / "config.yaml").functions)
            return render(stage.kind.model_validate({"resume": stage.folder, "overrides": functions}))
        # A process that was killed before it wrote its configuration has done nothing yet.
        shutil.rmtree(stage.folder, ignore_errors=True)
        return render(stage.command(plan.paths()))
    replacing = stage.folder.is_dir() and any(stage.folder.iterdir()) and "overwrite" in stage.kind.model_fields
    stage.folder.mkdir(parents=True, exist_ok=True)
    command = stage.command(plan.paths())
    return render(command.model_copy(update={"overwrite": True}) if replacing else command)


def trim(stage: PipelineStage) -> None:
    """Delete a finished run's checkpoints except the newest policy."""
    policy = policy_of(stage.folder) if is_run(stage.kind) else None
    if policy is None:
        return
    for path in (stage.folder / POLICY).iterdir():
        if path != policy.parent:
            shutil.rmtree(path)
    for path in policy.parent.iterdir():
        if path.is_dir() and path != policy:
            shutil.rmtree(path)
        elif path.is_file() and path.name != "state.json":
            path.unlink()


def _run(args: Sequence[str], started: Callable[[int], None], allowed: Sequence[str] | None) -> int:
    """Run `hamr <args>` in a process that ends with this one. `started` gets its pid."""
    child = start_hamr(args, {} if allowed is None else {ALLOWED_FUNCTIONS: ",".join(allowed)})
    try:
        started(child.pid)
        return child.wait()
    except BaseException as error:
        child.send_signal(signals.signal_of(error) or signal.SIGTERM)
        child.wait()
        raise


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[Callable[[int], None]]:
    """Lock the folder for one process, which the file names; the kernel releases the lock when the process ends.

    The body gets a function that names the process of the running stage, too. After a kill that process takes a moment
    to end; the lock waits for it.
    """
    with (folder / LOCK).open("a+") as file:
        if not try_lock(file):
            raise RunFolderError("resume", str(folder), "is in use by another process; wait for it")
        _wait_for_stage(folder)

        def write(stage: int | None) -> None:
            file.truncate(0)
            file.write(json.dumps(identity() | ({} if stage is None else {"stage": identity(stage)})))
            file.flush()

        write(None)
        yield write
        file.truncate(0)


def _wait_for_stage(folder: Path) -> None:
    """Wait until the stage of a killed pipeline has ended. Raises RunFolderError if it does not."""
    stage, until = (owner_of(folder, LOCK) or {}).get("stage"), time.monotonic() + STAGE_ENDS_S
    if stage is None or not is_visible(stage):
        return
    while not has_ended(stage):
        if time.monotonic() > until:
            raise RunFolderError("resume", str(folder), f"has a stage that still runs (pid {stage['pid']}); end it")
        time.sleep(0.1)
