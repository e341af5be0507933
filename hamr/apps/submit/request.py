"""Parser of a command for a cluster: the job's own arguments and the configuration that it runs with."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hamr.apps.pipeline.command import RunPipeline, TrainSweep
from hamr.apps.shared.commands import Command, ConfiguredCommand, parse_command
from hamr.apps.train.command import TrainingCommand
from hamr.config.load import load_config, load_dumped
from hamr.config.overrides import MULTIRUN, nearest_first
from hamr.config.schema import Config
from hamr.errors import BadInput, RunFolderError
from hamr.telemetry.live import LiveStatus
from hamr.telemetry.run_folder import RunFolder

LEARNING = ("train", "sft", "scorer")
"""Jobs that have a run folder."""
AS_GIVEN = ("calibrate", "evaluate")
"""Jobs whose own arguments determine the configuration; their command is forwarded unchanged."""
JOBS = ("train", "sft", "score", *AS_GIVEN, "scorer")
OTHERS = ("cluster", "launch")
"""Sections that may change when a run is resumed, because they only say where it runs."""


@dataclass(frozen=True, kw_only=True)
class SubmitRequest:
    """A job for a cluster. `where`: the arguments that only say where it runs; the command has the others."""

    command: Command
    where: tuple[str, ...]
    config: Config
    resume: Path | None = None

    @property
    def job(self) -> str:
        return self.command.words.split()[0]

    @classmethod
    def read(cls, words: Sequence[str]) -> SubmitRequest:
        """Parse the words of a job's command. Raises BadInput as the local command would."""
        if not words or words[0] not in JOBS:
            named = words[0] if words else None
            known = ", ".join(nearest_first(named, JOBS) if named else JOBS)
            raise BadInput("submit", named, f"name a job that can run on a cluster: {known}")
        where = tuple(word for word in words if "=" in word and _section(word) in OTHERS)
        command = parse_command([word for word in words if word not in where])
        if isinstance(command, RunPipeline | TrainSweep):
            remedy = (
                "several runs cannot be submitted as one; start them on a node of the cluster: cluster.address=auto"
            )
            given = f"pipeline={command.pipeline}" if isinstance(command, RunPipeline) else MULTIRUN
            raise BadInput(words[0], given, remedy)
        if words[0] not in AS_GIVEN and command.words != words[0]:
            raise BadInput("submit", command.words, f"runs only here; name one of: {', '.join(JOBS)}")
        if isinstance(command, TrainingCommand) and command.resume is not None:
            folder = RunFolder.open(command.resume).path
            status = LiveStatus.read(folder)
            if status is not None and status.alive():
                remedy = f"still runs (process {status.pid} on {status.host}); stop it first, or wait until it ends"
                raise RunFolderError("resume", str(folder), remedy)
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
        if self.resume is None and isinstance(self.command, ConfiguredCommand):
            return with_overrides(self.command, self.where)
        return self.command

    def run_name(self) -> str:
        """Return the name of a new run: as configured, or the experiment's name with the time."""
        experiment = self.config.experiment
        return experiment.run_dir or f"{experiment.name}-{time.strftime('%Y%m%d-%H%M%S')}"


def with_overrides(command: ConfiguredCommand, more: Sequence[str]) -> ConfiguredCommand:
    """Return the command with further overrides of the configuration."""
    return command.model_copy(update={"overrides": (*command.overrides, *more)})


def named_files(command: Command) -> Iterator[tuple[str, Any, str]]:
    """Yield (option, its value, path) of every file or folder that a job's own options name.

    A name that might be a file, as of a scenario or a policy, counts if it looks like a path.
    """
    for name, info in type(command).model_fields.items():
        if name == "overrides":
            continue
        value = getattr(command, name)
        for part in value if isinstance(value, tuple) else str(value).split(","):
            if isinstance(value, Path) or isinstance(part, Path) or "/" in part or part.endswith((".jsonl", ".yaml")):
                yield info.alias or name, str(value), str(value if isinstance(value, Path) else part).strip()


def _section(setting: str) -> str:
    return setting.lstrip("~+").partition("=")[0].split(".")[0]


def run_folder(request: SubmitRequest) -> Path:
    """Return the folder of a new training run.

    As configured if that is absolute, else below `cluster.run_root`, or the folder that `hamr train` would use here.
    """
    config = request.config
    root = Path(config.cluster.run_root or ("" if config.experiment.run_dir else "runs"))
    folder = root.absolute() / request.run_name()
    RunFolder.refuse_if_used(folder)
    return folder


def secret_variables(config: Config) -> list[str]:
    """Return the variables that the job needs where it runs; their values are never uploaded."""
    names = {pool.api_key_env for pool in config.pools.values() if pool.api_key_env}
    return sorted(names | ({"WANDB_API_KEY"} if config.logging.wandb.mode == "online" else set()))


def wandb_place(config: Config, run: Path | None) -> str:
    wandb = config.logging.wandb
    if wandb.mode == "disabled" or run is None:
        return "off"
    if wandb.mode == "offline":
        return f"offline, in {run / 'wandb'}"
    return f"https://wandb.ai/{wandb.entity}/{wandb.project}" if wandb.entity else f"https://wandb.ai ({wandb.project})"
