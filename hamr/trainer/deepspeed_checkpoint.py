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
from hamr.trainer.resharding import OldStates, load_resharded

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
    """Write DeepSpeed's optimiser and weights, and this rank's `rank_<r>.pt`, with the engine's writer. Collective."""
    engine.save_checkpoint(str(folder), tag=_TAG)
    own = {
        "ranks": world,
        "zero_stage": config.zero_stage,
        "progress": asdict(progress),
        "rng": torch.get_rng_state(),
        "rng_cuda": torch.cuda.get_rng_state() if config.backend == "nccl" else None,
    }
    engine.checkpoint_engine.save(own, str(folder / f"rank_{rank}.pt"))
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

    Another number of ranks, or another ZeRO stage from 1 to 3, may have written it; random states are then fresh.

    Raises RunFolderError, on every rank, if there is no state or one that this stage cannot take.
    """
    first = folder / "rank_0.pt"
    if not first.is_file():
        raise RunFolderError("resume", str(folder), "it contains no trainer state; give a folder that `save` wrote")
    written = torch.load(first, weights_only=True)
    ranks, stage = written["ranks"], written["zero_stage"]
    if stage != config.zero_stage and 0 in (stage, config.zero_stage):
        remedy = f"written with trainer.zero_stage={stage}, now {config.zero_stage}; set trainer.zero_stage={stage}"
        raise RunFolderError("resume", str(folder), remedy)
    with data_only(folder):
        if stage == 0 or (ranks, stage) == (world, config.zero_stage):
            engine.load_checkpoint(str(folder), tag=_TAG)
        else:
            load_resharded(engine, OldStates(folder / _TAG, ranks, stage), rank)
    if ranks == world:
        own = torch.load(folder / f"rank_{rank}.pt", weights_only=True)
        torch.set_rng_state(own["rng"])
        if own["rng_cuda"] is not None:
            torch.cuda.set_rng_state(own["rng_cuda"])
    return OptimiserProgress(**written["progress"])
