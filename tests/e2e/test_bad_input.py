"""Bad input is reported in one line with exit code 2, before Ray starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from hamr.cli import main

GOOD = {
    "id": "a",
    "ticket": {},
    "policy": "Be kind.",
    "tools": [],
    "history": [{"role": "customer", "content": "hello"}],
    "references": [{"action": "reply", "content": "Hello!"}],
}


def lines(*rows: object) -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)


def samples(n: int) -> list[dict[str, object]]:
    return [{**GOOD, "id": str(i), "references": [{"action": "reply", "content": f"Reply {i}."}]} for i in range(n)]


CASES = {
    "unknown key": (["experiment=smoke", "trainer.learning_rat=1"], None, "trainer.learning_rate"),
    "unknown model": (["experiment=smoke", "model.path=./nowhere"], None, "nowhere"),
    "missing data": (["experiment=smoke", "data.type=jsonl", "data.train=nowhere.jsonl"], None, "nowhere.jsonl"),
    "broken line": (["experiment=smoke", "data.type=jsonl", "data.train=d.jsonl"], lines(GOOD, "{"), "d.jsonl:2"),
    "no references": (
        ["experiment=smoke", "data.type=jsonl", "data.train=d.jsonl"],
        lines({**GOOD, "references": []}),
        "references",
    ),
    "foreign tool": (
        ["experiment=smoke", "data.type=jsonl", "data.train=d.jsonl"],
        lines({**GOOD, "references": [{"action": "call_tool", "name": "fly", "parameters": {}}]}),
        "fly",
    ),
    "few replies": (
        ["experiment=smoke", "data.type=jsonl", "data.train=d.jsonl"],
        lines(*samples(9)),
        "d.jsonl: '9 rep",
    ),
    "one act": (
        ["experiment=smoke", "data.type=jsonl", "data.train=d.jsonl"],
        lines(*({**row, "meta": {"act": "greet"}} for row in samples(12))),
        "d.jsonl: 'one act'",
    ),
    "scorers at chance": (
        [
            "experiment=smoke",
            "rewards=reranker",
            "pools.reranker={type: cross_encoder, model: compact-encoder, prompt: ''}",
            "pools.reranker.finetune={examples: 8, learning_rate: 1.0e-12}",
        ],
        None,
        "pools.reranker.model: 'compact-encoder': is no better than chance",
    ),
    "too many replicas": (["experiment=smoke", "pools.judge.replicas=500"], None, "pools.judge.replicas"),
    "used folder": (["experiment=smoke", "experiment.run_dir=."], lines(GOOD), "experiment.run_dir"),
    "no prompt fits": (["experiment=smoke", "model.max_context=64"], None, "model.max_context"),
    "online without a key": (["experiment=smoke", "logging=online"], None, "WANDB_API_KEY"),
}


def check(code: int, out: str, err: str, named: str, folder: Path) -> None:
    assert code == 2, out + err
    said = err.strip().splitlines()
    assert len(said) == 1 and named in said[0], err
    assert "Traceback" not in out + err
    assert not (folder / "runs").exists(), "a refused run leaves no folder"


SLOW = ("scorers at chance",)
"""Cases that train something before they are refused."""


@pytest.mark.parametrize("case", [pytest.param(c, marks=pytest.mark.deep if c in SLOW else ()) for c in CASES])
def test_bad_input_is_reported_in_one_line_with_exit_code_2(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    overrides, data, named = CASES[case]
    if data is not None:
        (tmp_path / "d.jsonl").write_text(data)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray, "init", lambda *_, **__: pytest.fail("Ray was started"))
    code = main(["train", *overrides])
    check(code, *capfd.readouterr(), named, tmp_path)


def test_separate_process_prints_nothing_else(tmp_path: Path) -> None:
    """Imported libraries print nothing either."""
    overrides, _, named = CASES["too many replicas"]
    command = [sys.executable, "-m", "hamr", "train", *overrides]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    check(done.returncode, done.stdout, done.stderr, named, tmp_path)
