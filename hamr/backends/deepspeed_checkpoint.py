"""What one rank needs to go on exactly: DeepSpeed's own files, random states and how far the stage has come."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hamr.config.schema import TrainerConfig
from hamr.errors import RunFolderError

_TAG = "state"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Optimiser steps of a stage: all, those skipped for a gradient norm that was not finite, and the latest of
    those in a row."""

    step: int = 0
    skipped: int = 0
    bad_in_a_row: int = 0

    def after(self, *, applied: bool) -> Progress:
        """
        >>> Progress(step=3, skipped=1, bad_in_a_row=1).after(applied=False)
        Progress(step=4, skipped=2, bad_in_a_row=2)
        """
        return Progress(
            step=self.step + 1,
            skipped=self.skipped + (not applied),
            bad_in_a_row=0 if applied else self.bad_in_a_row + 1,
        )


def save_state(engine: Any, folder: Path, config: TrainerConfig, rank: int, world: int, progress: Progress) -> None:
    """Optimiser and weights as DeepSpeed keeps them, and this rank's `rank_<r>.pt`. Collective."""
    engine.save_checkpoint(str(folder), tag=_TAG)
    own = {
        "ranks": world,
        "zero_stage": config.zero_stage,
        "progress": asdict(progress),
        "rng": torch.get_rng_state(),
        "rng_cuda": torch.cuda.get_rng_state() if config.backend == "nccl" else None,
    }
    torch.save(own, folder / f"rank_{rank}.pt")
    dist.barrier()


def load_state(engine: Any, folder: Path, config: TrainerConfig, rank: int, world: int) -> Progress:
    """Puts back what `save_state` wrote. Collective.

    Raises RunFolderError, on every rank alike, if there is nothing or another kind of world wrote it.
    """
    first = folder / "rank_0.pt"
    if not first.is_file():
        raise RunFolderError("resume", str(folder), "it holds no trainer state; give a folder that `save` wrote")
    written = torch.load(first, weights_only=True)
    for key, wanted in (("ranks", world), ("zero_stage", config.zero_stage)):
        if written[key] != wanted:
            remedy = f"written with trainer.{key}={written[key]}, now {wanted}; set trainer.{key}={written[key]}"
            raise RunFolderError("resume", str(folder), remedy)
    own = torch.load(folder / f"rank_{rank}.pt", weights_only=True)
    engine.load_checkpoint(str(folder), tag=_TAG)
    torch.set_rng_state(own["rng"])
    if own["rng_cuda"] is not None:
        torch.cuda.set_rng_state(own["rng_cuda"])
    return Progress(**own["progress"])
