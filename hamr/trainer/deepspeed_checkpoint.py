"""State of one rank for exact resumption: DeepSpeed's own files, random states and the stage's progress."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hamr.config.schema import TrainerConfig
from hamr.errors import RunFolderError

_TAG = "state"
_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
"""torch reads this variable at every load; it overrides the caller's argument."""


@dataclass(frozen=True, kw_only=True)
class OptimiserProgress:
    """Optimiser steps of a stage: all, those skipped for a non-finite gradient norm, and the latest skipped in a
    row."""

    step: int = 0
    skipped: int = 0
    bad_in_a_row: int = 0

    def after(self, *, applied: bool) -> OptimiserProgress:
        """Return the counts after one more step.

        >>> OptimiserProgress(step=3, skipped=1, bad_in_a_row=1).after(applied=False)
        OptimiserProgress(step=4, skipped=2, bad_in_a_row=2)
        """
        return OptimiserProgress(
            step=self.step + 1,
            skipped=self.skipped + (not applied),
            bad_in_a_row=0 if applied else self.bad_in_a_row + 1,
        )


def save_state(
    engine: Any, folder: Path, config: TrainerConfig, rank: int, world: int, progress: OptimiserProgress
) -> None:
    """Write DeepSpeed's optimiser and weights, and this rank's `rank_<r>.pt`. Collective."""
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


@contextmanager
def data_only(folder: Path) -> Iterator[None]:
    """Restrict every `torch.load` of this process to data while the body runs.

    Loads create only tensors, plain values and the few DeepSpeed classes that its files name. DeepSpeed would otherwise
    unpickle its files, and a pickle can run any code.

    Raises:
        RunFolderError: A file names another class.
    """
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    before = os.environ.get(_FORCE)
    os.environ[_FORCE] = "1"
    try:
        with torch.serialization.safe_globals([LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]):
            yield
    except Exception as error:
        if type(error).__name__ != "UnpicklingError":
            raise
        remedy = "its trainer state contains code, so it is not loaded; give a folder that hamr wrote"
        raise RunFolderError("resume", str(folder), remedy) from error
    finally:
        if before is None:
            del os.environ[_FORCE]
        else:
            os.environ[_FORCE] = before


def load_state(engine: Any, folder: Path, config: TrainerConfig, rank: int, world: int) -> OptimiserProgress:
    """Restore the state that `save_state` wrote. Collective.

    Raises RunFolderError, on every rank, if there is no state or a different configuration of ranks wrote it.
    """
    first = folder / "rank_0.pt"
    if not first.is_file():
        raise RunFolderError("resume", str(folder), "it contains no trainer state; give a folder that `save` wrote")
    written = torch.load(first, weights_only=True)
    for key, wanted in (("ranks", world), ("zero_stage", config.zero_stage)):
        if written[key] != wanted:
            remedy = f"written with trainer.{key}={written[key]}, now {wanted}; set trainer.{key}={written[key]}"
            raise RunFolderError("resume", str(folder), remedy)
    own = torch.load(folder / f"rank_{rank}.pt", weights_only=True)
    with data_only(folder):
        engine.load_checkpoint(str(folder), tag=_TAG)
    torch.set_rng_state(own["rng"])
    if own["rng_cuda"] is not None:
        torch.cuda.set_rng_state(own["rng_cuda"])
    return OptimiserProgress(**own["progress"])
