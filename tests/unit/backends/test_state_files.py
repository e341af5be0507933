"""Files of a trainer's state: the same bytes as a plain file, and nothing in them is run when they are read."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from hamr.backends import state_files
from hamr.backends.state_files import StateFiles, WrittenThrough


def test_pieces_arrive_in_order_and_are_flushed_as_they_fill_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = []
    monkeypatch.setattr(state_files, "PIECE", 10)
    monkeypatch.setattr(os, "fsync", lambda number: flushed.append(os.fstat(number).st_size))
    with WrittenThrough(tmp_path / "x") as file:
        assert [file.write(b"abc"), file.write(b"d" * 25), file.write(memoryview(b"ef"))] == [3, 25, 2]
    assert (tmp_path / "x").read_bytes() == b"abc" + b"d" * 25 + b"ef"
    assert flushed == [13, 23, 30]


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    state = {"moments": torch.arange(5.0), "step": 3, "groups": [{"lr": 1e-5, "betas": (0.9, 0.95)}]}
    StateFiles().save(state, str(tmp_path / "s.pt"))
    found = StateFiles().load(str(tmp_path / "s.pt"))
    assert torch.equal(found.pop("moments"), state.pop("moments"))
    assert found == state


class Trap:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(Path.cwd() / "trapped"),)


def test_what_a_file_would_run_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    StateFiles().save({"x": Trap()}, str(tmp_path / "s.pt"))
    with pytest.raises(pickle.UnpicklingError):
        StateFiles().load(str(tmp_path / "s.pt"))
    assert not (tmp_path / "trapped").exists()
