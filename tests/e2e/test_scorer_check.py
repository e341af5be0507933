"""`hamr scorer check` on real pools."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import ray

from hamr.cli import main
from tests.e2e.runs import hamr

EMBEDDING = [
    "experiment=smoke",
    "rewards=reranker",
    "pools.reranker.type=embedding",
    "pools.reranker.model=all-minilm-l6-v2",
    "pools.reranker.prompt=''",
]


@pytest.mark.deep
def test_embedding_prefers_wrong_facts_and_fragments(tmp_path: Path, joined: tuple[str, ...]) -> None:
    command = hamr("scorer", "check", "contexts=12", "output=found", *EMBEDDING, *joined)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found" / "scorer_check.json").read_text())
    assert found.keys() == {"reranker", "machine", "versions"} and found["reranker"]["contexts"] == 12
    assert 4 <= found["reranker"]["fooled"] <= 12
    assert all(won["contexts"] >= 1 for acts in found["reranker"]["acts"].values() for won in acts.values())
    assert {fooled["kind"] for fooled in found["reranker"]["sentences"]} & {"fact", "fragment"}
    assert "reranker: the best wrong reply outscores the median right one in" in done.stdout


def test_invalid_options_are_reported_before_ray_starts(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("Ray was started"))
    for option, said in (
        ("contexts=none", "contexts"),
        ("contexts=0", "contexts: 0: must be 1 or more"),
        ("rewards.consistency.weight=0", "weight"),
    ):
        assert main(["scorer", "check", *EMBEDDING, "rewards.format.weight=1", option]) == 2
        [line] = capfd.readouterr().err.splitlines()
        assert said in line
