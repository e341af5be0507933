"""Parser of a command for a cluster: the job's own arguments and the configuration that it runs with."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hamr.apps.jobs import names
from hamr.apps.pipeline.command import RunPipeline, TrainSweep
from hamr.apps.pipeline.log import is_pipeline, pipeline_owner
from hamr.apps.pipeline.plan import PipelinePlan, plan_pipeline
from hamr.apps.pipeline.sweep import plan_sweep
from hamr.apps.shared.commands import Command, ConfiguredCommand, parse_command, render
from hamr.apps.shared.training_command import TrainingCommand
from hamr.config.load import load_config, load_dumped
from hamr.config.overrides import nearest_first
from hamr.config.schema import Config
from hamr.errors import BadInput, RunFolderError
from hamr.security.processes import is_visible
from hamr.telemetry.live import LiveStatus
from hamr.telemetry.run_folder import RunFolder

LEARNING = ("train", "sft", "scorer")
"""Commands that have a run folder."""
RESOLVED = (*LEARNING, "score")
"""Commands that run with the configuration that was resolved here. All others run as they were given."""
ONLY_HERE = ("submit", "chat", "completion")
"""Commands that need this terminal."""
OTHERS = ("cluster", "launch")
"""Sections that may change when a run is resumed, because they only say where it runs."""


@dataclass(frozen=True, kw_only=True)
class SubmitRequest:
    """A job for a cluster. `where`: the arguments that only say where it runs; the command has the others.

    `stages`: the configurations of a pipeline's stages or a sweep's runs.
    """

    command: Command
    where: tuple[str, ...]
    config: Config
    resume: Path | None = None
    stages: tuple[Config, ...] = ()

    @property
    def job(self) -> str:
        return self.command.words.split()[0]

    @property
    def as_given(self) -> bool:
        """Return whether the command runs as it was given: its own arguments, or its stages', determine the
        configuration."""
        return bool(self.stages) or self.command.words not in RESOLVED

    @property
    def configs(self) -> tuple[Config, ...]:
        """Configurations of everything that runs."""
        return self.stages or (self.config,)

    @classmethod
    def read(cls, words: Sequence[str]) -> SubmitRequest:
        """Parse the words of a job's command. Raises BadInput as the local command would."""
        jobs = [name for name in names() if name not in ONLY_HERE]
        if not words or words[0] not in jobs:
            named = words[0] if words else None
            known = ", ".join(nearest_first(named, jobs) if named else jobs)
            raise BadInput("submit", named, f"name a job that can run on a cluster: {known}")
        where = tuple(w for w in words if "=" in w and w.lstrip("~+").partition("=")[0].split(".")[0] in OTHERS)
        command = parse_command([word for word in words if word not in where])
        if isinstance(command, TrainingCommand) and command.resume is not None and is_pipeline(command.resume):
            folder = command.resume.absolute()
            _refuse_running_pipeline(folder)
            stages = PipelinePlan.load(folder).configs_of_stages()
            command = command.model_copy(update={"resume": folder})
            return cls(command=command, where=where, config=load_config(where), resume=folder, stages=stages)
        if isinstance(command, RunPipeline | TrainSweep):
            if isinstance(command, RunPipeline):
                plan = plan_pipeline(with_overrides(command, where))
            else:
                plan = plan_sweep(with_overrides(command, where))
            return cls(command=command, where=where, config=load_config(where), stages=tuple(plan.configs.values()))
        if isinstance(command, TrainingCommand) and command.resume is not None:
            folder = RunFolder.open(command.resume).path
            status = LiveStatus.read(folder)
            if status is not None and status.alive():
                raise _still_runs(folder, status.pid, status.host)
            there = load_config(where)
            config = load_dumped(folder / "config.yaml", command.overrides).model_copy(
                update={name: getattr(there, name) for name in OTHERS}
            )
            for key, section in config.functions.items() if command.words == "train" else ():
                section.refuse_recorded(key)
            command = command.model_copy(update={"resume": folder})
            return cls(command=command, where=where, config=config, resume=folder)
        config = (
            with_overrides(command, where).config() if isinstance(command, ConfiguredCommand) else load_config(where)
        )
        return cls(command=command, where=where, config=config)

    def local(self) -> Command:
        """Return the command to run here."""
        if self.resume is not None or not isinstance(self.command, ConfiguredCommand | RunPipeline):
            return self.command
        return self.command.model_copy(update={"overrides": (*self.command.overrides, *self.where)})

    def run_name(self) -> str:
        """Return the name of a new run: as configured, or the experiment's, pipeline's or command's name with the
        time."""
        experiment = self.config.experiment
        if self.as_given:
            name = self.command.pipeline if isinstance(self.command, RunPipeline) else self.command.words
            words = re.sub(r"[^A-Za-z0-9]+", "-", Path(name).stem.split("=")[0]).strip("-")
            return f"{words}-{time.strftime('%Y%m%d-%H%M%S')}"
        return experiment.run_dir or f"{experiment.name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _refuse_running_pipeline(folder: Path) -> None:
    """Raise RunFolderError for a pipeline that runs. One elsewhere does while a stage writes its status."""
    owner = pipeline_owner(folder)
    if owner is None:
        return
    stages = (LiveStatus.is_alive(config.parent) for config in folder.glob("*/config.yaml"))
    if is_visible(owner) or any(stages):
        raise _still_runs(folder, owner["pid"], owner["host"])


def _still_runs(folder: Path, pid: int, host: str) -> RunFolderError:
    remedy = f"still runs (process {pid} on {host}); stop it first, or wait until it ends"
    return RunFolderError("resume", str(folder), remedy)


Overridable = TypeVar("Overridable", ConfiguredCommand, RunPipeline, TrainSweep)


def with_overrides(command: Overridable, more: Sequence[str]) -> Overridable:
    """Return the command with further overrides of the configuration."""
    return command.model_copy(update={"overrides": (*command.overrides, *more)})


def named_files(command: Command) -> Iterator[tuple[str, Any, str]]:
    """Yield (option, its value, path) of every file or folder that a job's own options name.

    A name that might be a file, as of a scenario or a policy, counts if it looks like a path.
    """
    for name, info in type(command).model_fields.items():
        if name in ("overrides", "stages", "resume"):
            continue
        value = getattr(command, name)
        value = tuple(value.values()) if isinstance(value, Mapping) else value
        for part in value if isinstance(value, tuple) else str(value).split(","):
            if isinstance(part, int):  # replicas
                continue
            if isinstance(value, Path) or isinstance(part, Path) or "/" in part or part.endswith((".jsonl", ".yaml")):
                yield info.alias or name, str(value), str(value if isinstance(value, Path) else part).strip()


def job_words(request: SubmitRequest, run: Path | None) -> tuple[list[str], bool]:
    """Return the words of the job's command, and whether it runs with the resolved configuration.

    A command that runs as it was given joins the cluster that runs it. `run`: folder of a new pipeline; the runs of a
    sweep get a new one next to it.
    """
    if request.resume is not None:
        return render(request.command), False  # a resumed run has its own configuration
    if not request.as_given and isinstance(request.command, ConfiguredCommand):
        return render(request.command.model_copy(update={"overrides": ()})), True
    command, more = request.command, [word for word in request.where if not word.startswith(_TYPES)]
    if isinstance(command, RunPipeline):
        command = RunPipeline.model_validate({**command.model_dump(exclude_unset=True), "folder": run})
    words = render(command)
    if isinstance(command, TrainSweep) and run is not None:
        more = [*(word for word in more if not word.startswith("cluster.run_root=")), f"cluster.run_root={run.parent}"]
    if isinstance(command, ConfiguredCommand | RunPipeline):
        words = [*words, *more, "cluster.address=auto"]
    return words, False


def pipeline_folder(request: SubmitRequest, root: Path) -> Path:
    """Return the folder of a new pipeline or sweep: the given one, or a new one below `root`."""
    command = request.command
    given = command.folder if isinstance(command, RunPipeline) else None
    return given or root / request.run_name()


_TYPES = ("cluster=", "cluster.type=")
"""Arguments that only choose the kind of cluster."""


def run_folder(request: SubmitRequest) -> Path:
    """Return the folder of a new training run.

    As configured if that is absolute, else below `cluster.run_root`, or the folder that `hamr train` would use here.
    """
    config = request.config
    root = Path(config.cluster.run_root or ("" if config.experiment.run_dir else "runs"))
    folder = root.absolute() / request.run_name()
    RunFolder.refuse_if_used(folder)
    return folder


def secret_variables(configs: Sequence[Config]) -> list[str]:
    """Return the variables that the job needs where it runs; their values are never uploaded."""
    names = {pool.api_key_env for config in configs for pool in config.pools.values() if pool.api_key_env}
    is_online = any(config.logging.wandb.mode == "online" for config in configs)
    return sorted(names | ({"WANDB_API_KEY"} if is_online else set()))


def wandb_place(config: Config, run: Path | None) -> str:
    wandb = config.logging.wandb
    if wandb.mode == "disabled" or run is None:
        return "off"
    if wandb.mode == "offline":
        return f"offline, in {run / 'wandb'}"
    return f"https://wandb.ai/{wandb.entity}/{wandb.project}" if wandb.entity else f"https://wandb.ai ({wandb.project})"
