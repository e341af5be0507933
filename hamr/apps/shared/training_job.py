"""A new training run or one to resume, and the line that says how to continue it."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hamr import signals
from hamr.apps.shared.input_files import check_unchanged, relative_files, write_digests
from hamr.apps.shared.preemption import stop_error
from hamr.apps.shared.preparation import run_path
from hamr.apps.shared.sinks import check_sinks
from hamr.apps.shared.training_command import changes_hardware
from hamr.config.custom import function_arguments
from hamr.config.load import IMPORTED, change_dumped, dump_config, load_dumped
from hamr.config.yaml_files import read_config
from hamr.data.importer_function import imported_samples
from hamr.data.samples import write_samples
from hamr.errors import EngineDied, RunFolderError
from hamr.files import write_atomic
from hamr.security.redaction import REDACTED
from hamr.telemetry.run_folder import RunFolder
from hamr.telemetry.tracker_sinks import flat

if TYPE_CHECKING:
    from hamr.apps.shared.training_command import TrainingCommand
    from hamr.config.schema import Config

SUPERVISED = "HAMR_SUPERVISED"
"""Set in the environment of a run that is restarted from outside."""
DIED = 75
"""Exit code of such a run if one of its processes died, so that a restart may help."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A new run or a run to resume."""

    config: Config
    path: Path
    resume: bool
    changed: Sequence[str] = ()
    """Overrides of a resumed run that its folder keeps."""

    @property
    def active_config(self) -> Config:
        """The configuration without the pools that the run never queries."""
        return self.config.with_asked_pools(*self.config.dialogue_pools.values())

    @classmethod
    def of(cls, command: TrainingCommand) -> Job:
        """Return the run of a command, after its checks."""
        if command.resume is None:
            return cls.new(command.check())
        return cls.from_folder(command.resume, command.overrides)

    @classmethod
    def new(cls, config: Config) -> Job:
        path = run_path(config.experiment)
        RunFolder.refuse_if_used(path)
        return cls(config=config, path=path, resume=False)

    @classmethod
    def from_folder(cls, path: Path, overrides: Sequence[str] = ()) -> Job:
        if not (path / "config.yaml").is_file():
            raise RunFolderError(
                "resume", str(path), "is not a run folder (no config.yaml); give one that hamr created"
            )
        for key, value in flat(read_config(path / "config.yaml")):
            if REDACTED in str(value) and not key.startswith("logging."):  # names of a tracker change no training
                remedy = f"is a secret that {path / 'config.yaml'} does not hold; write it there, or start a new run"
                raise RunFolderError(key, str(value), remedy)
        changed = [arg for arg in overrides if changes_hardware(arg)]
        functions = [arg for arg in overrides if not changes_hardware(arg)]
        recorded = load_dumped(path / "config.yaml")
        importer, needed = recorded.data.importer, []
        for arg in functions:
            key, _, value = arg.removeprefix("+").partition("=")
            if key == "data.importer.path" and importer is not None and importer.samples is not None:
                # The samples are in the run folder, so the path is not needed. A restarted run repeats it.
                if value.strip("'\"") != importer.path:
                    remedy = f"the run keeps the samples of {importer.path}; remove it, or start a new run"
                    raise RunFolderError(key, value, remedy)
                continue
            if key.removesuffix(".path") not in recorded.functions:
                raise RunFolderError(key, value, "the run has no such function; remove it")
            needed.append(arg)
        config = _joining(load_dumped(path / "config.yaml", [*needed, *changed]))
        check_sinks(config.logging)
        check_unchanged(path, config)
        return cls(config=config, path=path, resume=True, changed=changed)

    def open(self) -> RunFolder:
        if self.resume:
            folder = RunFolder.resume(self.path)
            if self.changed:
                write_atomic(folder.config, change_dumped(folder.config, self.changed))
            return folder
        folder = RunFolder.create(self.path, dump_config(self.config))
        write_digests(folder.path, self.config)
        if self.config.data.importer is not None:
            write_samples(folder.path / IMPORTED, imported_samples(self.config.data.importer))
        return folder


def _joining(config: Config) -> Config:
    """Set the cluster address to `auto` when a run is resumed inside a cluster job, wherever it started."""
    if not os.environ.get("RAY_ADDRESS"):
        return config
    return config.model_copy(update={"cluster": config.cluster.model_copy(update={"address": "auto"})})


@contextlib.contextmanager
def stoppable(job: Job, command: str = "train") -> Iterator[None]:
    """Convert a signal that arrives in the body to a one-line Preempted error that says how to resume the run.

    The death of a rank or an engine also says so, and where the logs are.
    """
    try:
        with signals.handle_signals():
            yield
    except (SystemExit, KeyboardInterrupt) as e:
        if (signum := signals.signal_of(e)) is None:
            raise
        begun = (job.path / "config.yaml").is_file()
        raise stop_error(
            f"; {how_to_resume(job.path, job.config, command) if begun else 'nothing was begun'}", signum
        ) from None
    except EngineDied as error:
        logs = job.path.absolute() / "logs"
        kept = f"its log is kept in {logs}" if logs.is_dir() else "its log is in Ray's dashboard"
        reason = getattr(error, "cause", None) or error  # the text of a remote error is its traceback
        death = EngineDied(f"{reason}; {kept}; {how_to_resume(job.path, job.config, command)}")
        if SUPERVISED in os.environ:
            death.exit_code = DIED
        raise death from error


def how_to_resume(folder: Path, config: Config, job: str = "train") -> str:
    """Return the command that continues a run, from any folder."""
    functions = function_arguments(config.functions)
    there = f"cd {shlex.quote(str(Path.cwd()))} && " if relative_files(config) else ""
    return f"continue with: {there}hamr {shlex.join([job, f'resume={folder.absolute()}', *functions])}"
