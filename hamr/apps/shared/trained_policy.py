"""Policy of a finished or running run: its configuration and the model of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hamr.config.load import load_dumped
from hamr.config.schema import Config
from hamr.errors import BadInput
from hamr.telemetry.run_folder import RunFolder
from hamr.trainer.checkpoints import Checkpoints


@dataclass(frozen=True, kw_only=True)
class TrainedPolicy:
    """`model` is a Hugging Face folder, `step` that of its checkpoint."""

    folder: RunFolder
    config: Config
    model: Path
    step: int

    @classmethod
    def of(cls, key: str, path: Path, step: int | None = None) -> TrainedPolicy:
        """Return the newest policy of a run folder, or that of a step.

        Raises BadInput for a folder that is not a run's, and for a run without such a checkpoint.
        """
        folder = RunFolder.open(path, key)
        config = load_dumped(folder.config)
        kept: list[int] = []
        for checkpoint in Checkpoints(folder.checkpoints).policies():
            if step in (None, checkpoint.step):
                model = (checkpoint.path / "policy").resolve()
                return cls(folder=folder, config=config, model=model, step=checkpoint.step)
            kept.append(checkpoint.step)
        if kept:
            steps = ", ".join(map(str, sorted(kept)))
            raise BadInput("step", step, f"{path} has no such checkpoint; it has steps {steps}")
        raise BadInput(key, str(path), "has no complete checkpoint; give a run that wrote one")
