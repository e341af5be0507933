"""Unwritable outputs are reported before a job starts anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hamr.apps.data.recipe_job import show
from hamr.apps.shared.commands import parse_command
from hamr.apps.shared.outputs import output_file, output_folder
from hamr.data.progress import ItemResult
from hamr.errors import DataError, HamrError


@pytest.mark.parametrize("below", ["", "/x", "/x/y"])
@pytest.mark.parametrize(
    "args",
    [
        ["data", "sage"],
        ["data", "olabench", "scenario=telecom_package"],
        ["plan", "experiment=paper_hrm", "launch=slurm"],
    ],
)
def test_output_folder_that_is_a_file_is_rejected(args: list[str], below: str, tmp_path: Path) -> None:
    (tmp_path / "afile").write_text("mine")
    with pytest.raises(HamrError, match="afile': is a file; give a folder") as refused:
        parse_command([*args, f"output={tmp_path / 'afile'}{below}"]).run()
    assert refused.value.exit_code == 2
    assert [path.read_text() for path in tmp_path.iterdir()] == ["mine"]


def test_unwritable_output_is_reported_before_pools_start(tmp_path: Path) -> None:
    (tmp_path / "afile").write_text("mine")
    with pytest.raises(HamrError, match="is a file; give a folder"):
        output_file(tmp_path / "afile" / "kept.jsonl", overwrite=False)
    new = tmp_path / "new"
    assert output_file(new / "kept.jsonl", overwrite=False) == new / "kept.jsonl"
    assert output_folder(new / "folder", [], overwrite=False) == new / "folder"


def test_folder_without_write_permission_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so the permission is faked."""
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(DataError, match=f"output: '{tmp_path}': cannot be written"):
        output_folder(tmp_path / "new" / "folder", [], overwrite=False)


def test_transient_failures_are_shown_with_the_retry_command(capsys: pytest.CaptureFixture[str]) -> None:
    """The output exists by then, so the same command without overwrite=true would be rejected."""
    show("items", {"a": ItemResult(kept={}), "b": ItemResult(reason="teacher: timeout", passing=True)})
    assert "1 transient failures; the same command with overwrite=true retries only these" in capsys.readouterr().out
    show("items", {"a": ItemResult(kept={})})
    assert "overwrite" not in capsys.readouterr().out


def test_device_is_no_output_file() -> None:
    with pytest.raises(DataError, match="output: '/dev/null': is not a regular file"):
        output_file(Path("/dev/null"), overwrite=True)
