"""Parser of a command for a cluster: the job's own arguments and the configuration that it runs with."""

from __future__ import annotations

import importlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hamr.config.load import load_config, load_dumped
from hamr.config.overrides import CONFIG_DIR_FLAG
from hamr.config.schema import Config
from hamr.errors import BadInput
from hamr.telemetry.run_folder import RunFolder

LEARNING = ("train", "sft", "scorer")
"""Jobs that have a run folder and no arguments besides the configuration."""
RESUMED = ("train", "sft")
"""Those that also take `resume`."""
AS_GIVEN = ("calibrate", "evaluate")
"""Jobs whose own arguments determine the configuration; their command is forwarded unchanged."""
OTHERS = ("cluster", "launch")
"""Sections that may change when a run is resumed, because they only say where it runs."""


@dataclass(frozen=True, kw_only=True)
class SubmitRequest:
    """A parsed command. `own`: the job's own arguments; `settings`: the arguments of the configuration."""

    job: str
    own: tuple[str, ...]
    settings: tuple[str, ...]
    config: Config
    resume: Path | None = None

    @classmethod
    def read(cls, job: str, args: Sequence[str]) -> SubmitRequest:
        own, settings = split(args)
        if job in AS_GIVEN:
            where = [s for s in settings if _says_where(s)]
            overrides = importlib.import_module(f"hamr.apps.{job}.command").overrides_of(
                [a for a in args if a not in where]
            )
            config = load_config([*overrides, *where])
            return cls(job=job, own=tuple(own), settings=tuple(settings), config=config)
        if job not in LEARNING:
            return cls(job=job, own=tuple(own), settings=tuple(settings), config=load_config(settings))
        for arg in args:
            if arg == "--multirun" or arg.startswith("pipeline="):
                remedy = (
                    "several runs cannot be submitted as one; start them on a node of the cluster: cluster.address=auto"
                )
                raise BadInput(job, arg, remedy)
        resumes = [arg for arg in own if job in RESUMED and arg.startswith("resume=")]
        resumed = [arg.partition("=")[2] for arg in resumes]
        # Report unknown arguments as the local command would.
        config = load_config([*settings, *(arg for arg in own if arg not in resumes)])
        if not resumed:
            return cls(job=job, own=(), settings=tuple(settings), config=config)
        others = [s for s in settings if _section(s) not in OTHERS]
        if others:
            raise BadInput("resume", others, "a resumed run keeps its configuration; drop all but cluster settings")
        folder = RunFolder.open(resumed[0]).path
        kept = load_dumped(folder / "config.yaml")
        config = kept.model_copy(update={name: getattr(config, name) for name in OTHERS})
        return cls(job=job, own=(f"resume={folder}",), settings=(), config=config, resume=folder)

    def run_name(self) -> str:
        """Return the name of a new run: as configured, or the experiment's name with the time."""
        experiment = self.config.experiment
        return experiment.run_dir or f"{experiment.name}-{time.strftime('%Y%m%d-%H%M%S')}"


def split(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return (the job's own arguments, the overrides of the configuration)."""
    own: list[str] = []
    settings: list[str] = []
    rest = iter(args)
    for arg in rest:
        if arg == CONFIG_DIR_FLAG:
            settings += [arg, next(rest, "")]
            continue
        known = _section(arg) in Config.model_fields or arg.startswith(CONFIG_DIR_FLAG)
        (settings if known else own).append(arg)
    return own, settings


def _says_where(setting: str) -> bool:
    return "=" in setting and _section(setting) in OTHERS


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
