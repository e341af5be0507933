"""Arguments of `hamr train pipeline=...` and of `--multirun`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from hamr.apps.shared.commands import Command, Folder, Prefix
from hamr.apps.shared.training_command import TrainingCommand


class RunPipeline(Command):
    """Run the stages of a pipeline in sequence, each in its own process and folder. All stages are checked before the
    first one starts. `hamr train resume=FOLDER` continues a pipeline.
    """

    examples = (
        "hamr train pipeline=olamind_small dry_run=true",
        "hamr train pipeline=hrm inputs.pairs=pairs.jsonl stages.rl.experiment.steps=100",
    )
    work = "hamr.apps.pipeline.run:start"

    pipeline: Annotated[str, Field(title="NAME|FILE.yaml")]
    """Pipeline of conf/pipeline or of --config-dir, or a file of your own."""
    dry_run: bool = False
    """Check the stages and print their commands; run nothing."""
    folder: Annotated[Folder | None, Field(alias="experiment.run_dir", title="FOLDER")] = None
    """Folder of the pipeline. By default a new one in runs/."""
    inputs: Annotated[dict[str, Path], Prefix("inputs."), Field(title="[inputs.NAME=FILE]", default_factory=dict)]
    """Inputs that the pipeline asks for."""
    stages: Annotated[tuple[str, ...], Prefix("stages."), Field(title="[stages.STAGE.OVERRIDE]")] = ()
    """Arguments for one stage, written as its own command takes them."""
    overrides: Annotated[tuple[str, ...], Prefix(), Field(title="[overrides]")] = ()
    """Values and choices of the configuration for all stages, and --config-dir; `hamr --help` explains them."""


class TrainSweep(TrainingCommand):
    """Run every combination of the given values in sequence, each in its own folder. `key=1,2`, `key=range(1,4)` and
    `key=choice(a,b)` have several values.
    """

    examples = ("hamr train --multirun experiment.seed=0,1,2 algorithm=grpo,dapo",)

    def run(self) -> int:
        from hamr.apps.pipeline.run import resume
        from hamr.apps.pipeline.sweep import sweep

        return sweep(self) if self.resume is None else resume(self.resume, functions=self.overrides)


class SftSweep(TrainSweep):
    examples = ("hamr sft --multirun trainer.learning_rate=1e-5,1e-4",)
