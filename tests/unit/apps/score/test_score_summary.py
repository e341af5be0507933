"""The summary of a scored file: hand-computed figures; failures are counted and never averaged."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hamr.apps.score.summary import Tally, ValueSpread, bars, plot, summary_tables
from hamr.report.terminal import show
from hamr.types import (
    Absent,
    Audit,
    Component,
    JudgeTimeout,
    MalformedResponse,
    ReferenceScore,
    RewardRecord,
    SampleKey,
    Scored,
    ScorerCall,
    Total,
)


def record(index: int, total: Total, **more: object) -> RewardRecord:
    fields = {"components": (), "action": None, "band": "none"} | more
    return RewardRecord(key=SampleKey(run="r", step=1, prompt="p", sample=index), total=total, **fields)  # type: ignore[arg-type]


def call(attempts: int) -> ScorerCall:
    return ScorerCall(
        pool="judge", model="m", prompt_version="1", replica="", queue_s=0.0, service_s=0.0,
        prompt_tokens=10 * attempts, output_tokens=attempts, attempts=attempts, cost=0.5 * attempts,
    )  # fmt: skip


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=60))
def test_spread_matches_statistics_of_all_values(values: list[float]) -> None:
    spread = ValueSpread()
    for value in values:
        spread.add(value)
    assert spread.mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert spread.std == pytest.approx(statistics.pstdev(values), abs=1e-6)
    assert (spread.low, spread.high) == (min(values), max(values))
    left, width, counts = spread.histogram(most=10)
    assert sum(counts) == len(values) and len(counts) <= 10
    assert left <= min(values) + 1e-3 and max(values) < left + width * len(counts)


def test_bin_edges_belong_to_the_upper_bin() -> None:
    spread = ValueSpread()
    for value in (0.0, 0.05, 0.1, 0.15, 0.3):
        spread.add(value)
    left, width, counts = spread.histogram()
    assert (left, round(width, 3), counts) == (0.0, 0.05, [1, 1, 1, 1, 0, 0, 1])
    assert bars([0, 1, 8]) == " ▁█"
    assert bars([]) == ""


def test_failures_are_counted_by_kind_and_excluded_from_means(tmp_path: Path) -> None:
    tally = Tally()
    consistency = [Scored(value=1.0), JudgeTimeout(detail="late"), MalformedResponse()]
    components = [(Component(name="consistency", outcome=o, weight=1.0),) for o in consistency]
    rubric = Component(name="rubric", outcome=Absent(), weight=1.0)
    tally.add([
        record(0, Scored(value=1.0), components=(*components[0], rubric), band="above", calls=(call(2), call(0))),
        record(1, JudgeTimeout(detail="late"), components=components[1], band="inside", calls=(call(1),)),
        record(2, MalformedResponse(), components=components[2]),
    ])  # fmt: skip
    assert (tally.groups, tally.responses) == (1, 3)
    assert (tally.spreads["total"].count, tally.spreads["total"].mean) == (2, 0.5)
    assert (tally.spreads["consistency"].count, tally.spreads["consistency"].low) == (2, 0.0)
    assert tally.unscored == {"consistency": {"judge_timeout": 1}, "rubric": {"absent": 1}}
    assert tally.outcomes == {"scored": 1, "judge_timeout": 1, "malformed_response": 1}
    assert (tally.cascaded, tally.escalated) == (2, 1)
    # An answer that a sibling had asked for is not a call.
    assert (tally.calls["judge"], tally.tokens["judge"], tally.cost) == (2, 33, 1.5)
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    show(*summary_tables(tally, "title"), console=console)
    said = console.export_text()
    assert "50.0% of 2 replies in the cascade went to the judge" in said
    assert "1 judge_timeout, 1 malformed_response, 1 scored" in said
    png = plot(tally, tmp_path / "h.png")
    assert png is not None and png.read_bytes().startswith(b"\x89PNG")


def test_audits_add_the_debiased_means() -> None:
    """Every second of 80 replies inside the interval is audited, and the judge's reward is 0.3 lower."""
    tally, reward = Tally(), Scored(value=0.8)
    inside = record(0, reward, components=(Component(name="consistency", outcome=reward, weight=2.0),), band="inside")
    inside = replace(inside, s_r=0.8, reference_scores=(ReferenceScore(reference=0, s_r=0.8),))
    audits = [Audit(s_r=0.8, s_j=0.5, mix=0.5) if i % 2 else None for i in range(80)]
    tally.add([replace(inside, key=replace(inside.key, prompt=f"p{i}"), audit=audit) for i, audit in enumerate(audits)])
    rows = dict(summary_tables(tally, "title")[-1].rows)
    assert rows["consistency, by audits"] == "0.5000 (95 %: 0.4753 to 0.5247; 40 audits)"
    assert str(rows["total, by audits"]).startswith("0.2000"), "0.8 - 2.0 * 0.3"


@pytest.mark.parametrize("values", [(1.0, -1e12), (1e308, 0.5), (1e308, -1e308, 1e308)])
def test_summary_of_huge_rewards_is_printed_and_plotted(tmp_path: Path, values: tuple[float, ...]) -> None:
    tally = Tally()
    tally.add([record(i, Scored(value=value)) for i, value in enumerate(values)])
    left, width, counts = tally.spreads["total"].histogram()
    assert sum(counts) == len(values) and len(counts) <= 24
    assert counts[0] and counts[-1] and left < left + width
    show(*summary_tables(tally, "title"), console=Console(file=(tmp_path / "out").open("w")))
    assert plot(tally, tmp_path / "h.png") is not None


def test_summary_without_scores_draws_no_plot(tmp_path: Path) -> None:
    tally = Tally()
    tally.add([record(0, JudgeTimeout())])
    assert plot(tally, tmp_path / "h.png") is None
    assert not (tmp_path / "h.png").exists()
    show(*summary_tables(tally, "title"), console=Console(file=(tmp_path / "out").open("w")))
