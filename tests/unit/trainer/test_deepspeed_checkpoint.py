"""Trainer state of a run folder: data is loaded, code is rejected."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum

from hamr.errors import RunFolderError
from hamr.trainer.deepspeed_checkpoint import data_only


class Planted:
    """Object that unpickles as a function call, which creates a file here."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.file),)


def test_deepspeed_files_are_loaded(tmp_path: Path) -> None:
    state = {"step": 3, "moments": torch.ones(4), "scaler": LossScaler(scale=2.0), "stage": ZeroStageEnum.gradients}
    torch.save(state, tmp_path / "state.pt")
    with data_only(tmp_path):
        back = torch.load(tmp_path / "state.pt", weights_only=False)
    assert (back["step"], back["stage"]) == (3, ZeroStageEnum.gradients)
    assert back["scaler"].loss_scale == 2.0
    assert torch.equal(back["moments"], torch.ones(4))


def test_code_in_checkpoint_files_is_not_run(tmp_path: Path) -> None:
    torch.save({"scaler": Planted(tmp_path / "was here")}, tmp_path / "state.pt")
    with pytest.raises(RunFolderError, match="contains code"), data_only(tmp_path):
        torch.load(tmp_path / "state.pt", weights_only=False)
    assert not (tmp_path / "was here").exists()
    # The file is what it is taken for: without the guard it does run.
    torch.load(tmp_path / "state.pt", weights_only=False)
    assert (tmp_path / "was here").is_dir()


def test_other_errors_are_raised_unchanged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), data_only(tmp_path):
        torch.load(tmp_path / "no.pt", weights_only=False)
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ
