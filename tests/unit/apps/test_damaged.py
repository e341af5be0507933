"""Damaged files of a run folder are reported in one line, without a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from hamr.apps.shared.commands import parse_command
from hamr.config.load import dump_config, load_config, load_dumped
from hamr.config.pipeline import read_pipeline
from hamr.errors import BadInput
from hamr.telemetry.ledger import Ledger


def run(*words: object) -> int:
    return parse_command([str(word) for word in words]).run()


NO_YAML = [b"a: [1", b"\xff\xfe", b"a: \x07"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(dump_config(load_config(["experiment=smoke"])))
    return tmp_path


def refused(line: str, call: object, *args: object) -> None:
    assert callable(call)
    with pytest.raises(BadInput, match=line) as said:
        call(*args)
    assert said.value.exit_code == 2 and "\n" not in str(said.value)


@pytest.mark.parametrize("content", [*NO_YAML, b"- a"])
def test_damaged_configuration_is_reported(content: bytes, folder: Path) -> None:
    (folder / "config.yaml").write_bytes(content)
    refused("config.yaml", run, "status", folder)
    refused("config.yaml", run, "report", folder)
    refused("config.yaml", load_dumped, folder / "config.yaml")


@pytest.mark.parametrize("content", NO_YAML)
def test_damaged_pipeline_is_reported(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes(content)
    refused("mine.yaml", read_pipeline, tmp_path / "mine.yaml")


@pytest.mark.parametrize("content", [b'{"a": 1\n', b"[]\n", b"\xff\n"])
def test_damaged_metrics_are_reported(content: bytes, folder: Path) -> None:
    whole = b'{"stage": "rl", "step": 1}\n'
    (folder / "metrics.jsonl").write_bytes(whole + content + whole)
    refused("metrics.jsonl:2", run, "status", folder)
    refused("metrics.jsonl:2", run, "report", folder)


@pytest.mark.parametrize("readonly", [True, False])
def test_damaged_ledger_is_reported(readonly: bool, tmp_path: Path) -> None:
    (tmp_path / "ledger.sqlite").write_bytes(b"no ledger " * 100)
    refused("ledger.sqlite", lambda: Ledger(tmp_path / "ledger.sqlite", readonly=readonly))
