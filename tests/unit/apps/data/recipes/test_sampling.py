"""Rejection sampling of a run's responses: selection, rendering and counts."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from hamr.apps.data.recipes.sampling import best_responses, samples_out_of_reach, split_response
from hamr.cli import main as hamr
from hamr.data.samples import write_samples
from hamr.data.sft_items import item_from_json, item_to_json, read_items
from hamr.telemetry.ledger import Ledger
from hamr.types import (
    Absent,
    Component,
    JudgeTimeout,
    Reference,
    Reply,
    RewardRecord,
    SampleKey,
    Scored,
    ServiceSample,
    ToolCall,
    Total,
)

LOOK = '<tool_call>{"name": "look", "arguments": {"n": 1}}</tool_call>'


def sample(name: str = "s") -> ServiceSample:
    tool = {"name": "look", "parameters": {"type": "object", "properties": {"n": {}}}}
    return ServiceSample(
        id=name, ticket={}, policy="", tools=(tool,), history=(), references=(Reference(action=Reply(content="Yes.")),)
    )


def record(said: str, total: float | Total, prompt: str = "s", step: int = 0, number: int = 0) -> RewardRecord:
    outcome = Scored(value=total) if isinstance(total, float) else total
    return RewardRecord(
        key=SampleKey(run="r", step=step, prompt=prompt, sample=number), total=outcome, components=(), action=None,
        band="none", response=said,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("response", "found"),
    [
        ("Sure.", (Reply(content="Sure."), "")),
        (LOOK, (ToolCall(name="look", parameters={"n": 1}), "")),
        ("<think>I see.</think><answer>Sure.</answer>", (Reply(content="Sure."), "I see.")),
        ("<answer>Sure.</answer><think>I see.</think>", (Reply(content="Sure."), "I see.")),
        ("<answer>Sure.</answer><think>I s", None),
        ("<answer>Sure.</answer>", (Reply(content="Sure."), "")),
        (
            "<answer>Sure.</answer><think>I say <answer> first.</think>",
            (Reply(content="Sure."), "I say <answer> first."),
        ),
        ("<think></think><answer>Sure.</answer>", None),
        ("<tool_call>{", None),
        ("", None),
    ],
)
def test_action_is_extracted_from_a_response(response: str, found: Any) -> None:
    assert split_response(response) == found


def test_best_distinct_responses_are_kept_in_sample_order() -> None:
    records = [
        record("Fine.", 0.7),
        record("<think>I see.</think><answer>Sure.</answer>", 0.9),
        record("sure", 0.8),
        record("No.", 0.3),
        record("<tool_call>", 1.0),
        record("Maybe.", JudgeTimeout()),
        record("Later.", 0.6),
        record(LOOK, 0.5, prompt="first"),
        record("Elsewhere.", 1.0, prompt="unknown"),
    ]
    items, counts = best_responses(records, {"first": sample("first"), "s": sample()}, best=2, min_total=0.5)
    assert [(item.kind, item.sample.id, item.text) for item in items] == [
        ("decision", "first", LOOK),
        ("decision_dra", "s", "<think>I see.</think><answer>Sure.</answer>"),
        ("decision", "s", "Fine."),
    ]
    assert counts == {
        "kept": 3, "dropped: a duplicate": 1, "dropped: below min_total": 1, "dropped: no action": 1,
        "dropped: its scoring failed": 1, "dropped: not among the best": 1,
    }  # fmt: skip
    for item in items:
        assert item_from_json(item_to_json(item)) == item


def test_earlier_response_wins_a_tie() -> None:
    items, _ = best_responses([record("One.", 0.5), record("Two.", 0.5)], {"s": sample()}, best=1, min_total=0.5)
    assert [item.text for item in items] == ["One."]


def scored(text: str, prompt: str, **values: float | None) -> RewardRecord:
    """A response whose terms have weight 1; None: the sample lacks the term."""
    terms = tuple(
        Component(name=name, outcome=Absent() if value is None else Scored(value=value), weight=1.0)
        for name, value in values.items()
    )
    total = sum(value for value in values.values() if value is not None)
    return dataclasses.replace(record(text, total, prompt=prompt), components=terms)


def test_mean_of_the_present_terms_selects_where_samples_lack_terms() -> None:
    records = [
        scored("All.", "whole", dialogue=0.8, policy=0.8, tool=0.8, rubric=0.8),
        scored("Half.", "bare", dialogue=0.9, policy=0.9, tool=None, rubric=None),
        scored("Weak.", "bare", dialogue=0.5, policy=0.9, tool=None, rubric=None),
    ]
    samples = {name: sample(name) for name in ("whole", "bare")}
    by_total, _ = best_responses(records, samples, best=2, min_total=3)
    by_mean, counts = best_responses(records, samples, best=2, min_mean=0.75)
    assert [item.text for item in by_total] == ["All."]
    assert [item.text for item in by_mean] == ["All.", "Half."]
    assert counts == {"kept": 2, "dropped: below min_mean": 1}
    assert samples_out_of_reach(records, samples, 3) == 1
    assert samples_out_of_reach(records, samples, 2) == 0


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_samples(tmp_path / "s.jsonl", [sample()])
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.add([record("Early.", 1.0, step=1), record("Late.", 0.5, step=5)])
    return tmp_path


def test_job_reads_a_run_from_the_given_step(run: Path, capsys: Any) -> None:
    args = [
        "data",
        "sampled",
        f"input={run / 's.jsonl'}",
        f"ledger={run}",
        f"output={run / 'o.jsonl'}",
        "min_total=0.2",
    ]
    assert hamr([*args, "since=2"]) == 0
    assert "samples with a response" in capsys.readouterr().out
    assert [item.text for item in read_items(run / "o.jsonl")] == ["Late."]
    assert hamr(args) == 2
    assert hamr([*args, "overwrite=true"]) == 0
    assert [item.text for item in read_items(run / "o.jsonl")] == ["Early."]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["ledger={run}"], "give min_total or min_mean, one of them"),
        (["ledger={run}", "min_total=1", "min_mean=0.5"], "give min_total or min_mean, one of them"),
        (["ledger={run}", "min_mean=2"], "min_mean: 2.0: leaves nothing of 2 responses (dropped: below min_mean)"),
        (["min_total=0.1"], "give ledger="),
        (["ledger={run}", "min_total=2"], "leaves nothing of 2 responses (dropped: below min_total)"),
        (["ledger={run}", "min_total=0", "since=9"], "no responses to these samples from step 9 on"),
        (["ledger={run}/no", "min_total=0"], "no such file"),
        (["ledger={run}", "min_total=0", "best=0"], "1 or more"),
        (["ledger={run}", "min_totl=0"], "did you mean min_total"),
    ],
)
def test_bad_input_is_reported_in_one_line(run: Path, capsys: Any, args: list[str], said: str) -> None:
    given = [f"input={run / 's.jsonl'}", f"output={run / 'o.jsonl'}", *(arg.format(run=run) for arg in args)]
    assert hamr(["data", "sampled", *given]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (run / "o.jsonl").exists()


def test_thought_is_rendered_in_the_requested_orders() -> None:
    records = [record("<answer>Sure.</answer><think>I see.</think>", 0.9), record("Fine.", 0.8)]
    items, counts = best_responses(records, {"s": sample()}, best=2, min_total=0.5, render="hybrid")
    assert [(item.kind, item.text) for item in items] == [
        ("decision_dra", "<think>I see.</think><answer>Sure.</answer>"),
        ("decision_post", "<answer>Sure.</answer><think>I see.</think>"),
        ("decision", "Fine."),
    ]
    assert counts == {"kept": 2}
