"""Files of a trainer's state: the same bytes as a plain file, flushed while writing."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
import torch

from hamr.errors import RunFolderError
from hamr.trainer import state_files
from hamr.trainer.checkpoints import Checkpoints
from hamr.trainer.state_files import StateFiles, WrittenThrough


def test_chunks_are_written_in_order_and_flushed_when_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = []
    monkeypatch.setattr(state_files, "PIECE", 10)
    monkeypatch.setattr(os, "fsync", lambda number: flushed.append(os.fstat(number).st_size))
    with WrittenThrough(tmp_path / "x") as file:
        assert [file.write(b"abc"), file.write(b"d" * 25), file.write(memoryview(b"ef"))] == [3, 25, 2]
    assert (tmp_path / "x").read_bytes() == b"abc" + b"d" * 25 + b"ef"
    assert flushed == [13, 23, 30]
    assert (tmp_path / "x.sha256").read_text() == hashlib.sha256((tmp_path / "x").read_bytes()).hexdigest()


def test_state_survives_the_file_round_trip(tmp_path: Path) -> None:
    state = {"moments": torch.arange(5.0), "step": 3, "groups": [{"lr": 1e-5, "betas": (0.9, 0.95)}]}
    StateFiles().save(state, str(tmp_path / "s.pt"))
    found = torch.load(tmp_path / "s.pt", weights_only=True)
    assert torch.equal(found.pop("moments"), state.pop("moments"))
    assert found == state


def test_held_files_have_the_state_at_the_time_of_the_last_copy(tmp_path: Path) -> None:
    state, writer = {"moments": torch.arange(5000.0)}, StateFiles()
    writer.save(state, str(tmp_path / "now.pt"))
    with writer.holding():
        writer.save(state, str(tmp_path / "dropped.pt"))
    with writer.holding():
        writer.save(state, str(tmp_path / "later.pt"))
    state["moments"].zero_()
    assert not (tmp_path / "later.pt").exists()
    writer.write_held()
    assert (tmp_path / "later.pt").read_bytes() == (tmp_path / "now.pt").read_bytes()
    assert (tmp_path / "later.pt.sha256").read_text() == (tmp_path / "now.pt.sha256").read_text()
    assert sorted(path.name for path in tmp_path.glob("*.pt")) == ["later.pt", "now.pt"]


async def test_state_is_hashed_while_it_is_written(tmp_path: Path) -> None:
    async def write(folder: Path) -> None:
        (folder / "state").mkdir()
        StateFiles().save({"moments": torch.arange(2_000_000.0)}, str(folder / "state" / "optim_states.pt"))

    await Checkpoints(tmp_path).save(1, write, {})
    path = tmp_path / "step_1" / "state" / "optim_states.pt"
    assert [p.name for p in path.parent.iterdir()] == ["optim_states.pt"]
    newest = Checkpoints(tmp_path).newest()
    assert newest is not None and newest.step == 1
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(RunFolderError, match=r"state/optim_states\.pt does not match its checksum"):
        Checkpoints(tmp_path).newest()
