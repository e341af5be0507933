"""`benchmarks/star_check.py`: its planned steps and the figures computed from their outputs."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from star_check import ARMS, figures, steps, tables  # noqa: E402

from hamr.config.load import load_config  # noqa: E402
from hamr.data.progress import ItemResult  # noqa: E402
from hamr.data.samples import write_rows, write_samples  # noqa: E402
from hamr.telemetry.ledger import Ledger  # noqa: E402
from hamr.types import Reference, Reply, RewardRecord, SampleKey, Scored, ServiceSample, ToolCall  # noqa: E402


def given(work: Path) -> argparse.Namespace:
    return argparse.Namespace(data=work, work=work, tickets=2, points=4, steps=3, most=60)


def sample(name: str, action: Reply | ToolCall) -> ServiceSample:
    return ServiceSample(
        id=name,
        ticket={},
        policy="",
        tools=({"name": "look", "parameters": {"type": "object", "properties": {}}},),
        history=(),
        references=(Reference(action=action),),
    )


def records(path: Path, *made: ItemResult) -> None:
    write_rows(path, ({"id": str(i), **vars(one)} for i, one in enumerate(made)))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Working folder with the outputs of all steps."""
    star = tmp_path / "star"
    write_samples(star / "train.jsonl", [sample("a", Reply(content="Hi."))])
    write_samples(star / "test.jsonl", [sample("r", Reply(content="Hi.")), sample("c", ToolCall(name="look"))])
    told = {"tickets": 2, "decision points": 3, "planning windows": {"complete": 1, "the ticket ends": 2}}
    write_rows(star / "report.json", [{**told, "private values hidden": {"account": 1}}])
    kept, dropped = ItemResult(kept={}), ItemResult(reason="tags")
    records(tmp_path / "plans_small.jsonl.records.jsonl", dropped)
    records(tmp_path / "reasons.jsonl.records.jsonl", kept, dropped)
    added = ItemResult(kept={"added": []}, notes=("candidates: added", "candidates: cut off"))
    records(tmp_path / "points_multi.jsonl.records.jsonl", added)
    records(tmp_path / "plans.jsonl.records.jsonl", kept, kept)
    write_rows(tmp_path / "points_multi.jsonl.table3.jsonl", [{"set": "points", "added": 1}])
    write_rows(tmp_path / "reasons.jsonl", [{}])
    for path in ("plans_small.jsonl", "plans.jsonl"):
        (tmp_path / path).touch()
    for arm in ARMS:
        losses = [{"step": s, "sets": {"references": {"loss": loss}}} for s, loss in ((0, 2.0), (3, 1.0))]
        trained = {"steps": 3, "sft": {"sets": {"references": {"train": 9}}, "validations": losses}}
        write_rows(tmp_path / f"sft_{arm}" / "summary.json", [trained])
        stage: dict[str, Any] = {"n": 2, "tool_exact_match": 1.0, "action_accuracy": 0.5, "format_error_rate": 0.0}
        write_rows(tmp_path / f"test_{arm}" / "summary.json", [{"stages": {"base": stage}, "timing": {"start": 1.0}}])
        with Ledger(tmp_path / f"test_{arm}" / "ledger.sqlite") as ledger:
            for name in ("r", "c"):
                key = SampleKey(run=f"test_{arm}/eval-base", step=0, prompt=name, sample=0)
                ledger.add([RewardRecord(key=key, total=Scored(value=0.0), components=(), action=None, band="none")])
    return tmp_path


def test_figures_are_computed_from_the_outputs_of_the_steps(work: Path) -> None:
    plan = steps(given(work))
    assert all((work / step.made).is_file() for step in plan if step.name.startswith(("sft_decision", "test_")))
    found = json.loads(json.dumps(figures(work, plan, {"most": 60})))
    lines = tables(found).splitlines()
    assert lines[0].startswith(
        "2 tickets, 3 decision points, 1 complete planning windows, 2 incomplete (the ticket ends)"
    )
    assert "| PATM, the 135M model as teacher and judge | 1 | 0 | tags 1 |" in lines
    assert "| Multi-GT, the same: its candidates | 2 | 1 | cut off 1 |" in lines
    assert "| original | - | 2.000 | 0.50 | 1 of 1 | 0.00 |" in lines
    assert "| mix | 24 items of references | 1.000 | 0.50 | 1 of 1 | 0.00 |" in lines


def test_mix_uses_kept_items_and_every_run_composes(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(work)
    commands = {step.name: shlex.split(step.command) for step in steps(given(work))}
    assert "sft.sets=[{}, {path: reasons.jsonl}]" in commands["sft_mix"]
    for name, command in commands.items():
        if name.startswith(("sft_", "test_")):
            config = load_config(command[2:])
            assert config.data.train == str(work / "star" / "train.jsonl")
            # A recipe may keep one item of one ticket, and held out it would leave nothing.
            assert config.sft.held_out_frac == 0 or name.startswith("test_")
            assert config.experiment.steps == 0 or name.startswith("sft_")
