import json
import logging
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.algorithms.group_outcomes import has_reward
from hamr.errors import RunFolderError
from hamr.files import read_jsonl
from hamr.telemetry import glossary
from hamr.telemetry.glossary import METRICS, UnknownMetric, check_names, lookup
from hamr.telemetry.metrics import (
    MetricsWriter,
    episode_metrics,
    histogram,
    percentile,
    read_metrics,
    reduce_stats,
    reward_metrics,
    router_metrics,
)
from hamr.types import (
    TURN_REWARD,
    Component,
    EpisodeResult,
    JudgeTimeout,
    MalformedResponse,
    ReferenceScore,
    RerankerUnavailable,
    Scored,
    Stale,
)
from scripts import docs_site
from tests.unit.telemetry.records import BANDS, FAILURES, call, record

outcomes = st.sampled_from([Scored(value=0.5), MalformedResponse(), *(failure() for failure in FAILURES)])


def part(name, outcome, weight=1.0):
    return Component(name=name, outcome=outcome, weight=weight)


def test_reward_metrics_match_hand_computed_values():
    rs = [
        record(0, 1.0, components=[part("consistency", Scored(value=0.5)), part("format", Scored(value=1.0))]),
        record(1, 3.0, components=[part("consistency", Scored(value=0.9)), part("format", Scored(value=0.0))]),
        record(2, MalformedResponse(), components=[part("consistency", MalformedResponse())]),
        record(3, JudgeTimeout(), components=[part("consistency", JudgeTimeout()), part("format", Scored(value=1.0))]),
    ]
    m = reward_metrics(rs)
    # The failure is in no mean of the total: (1 + 3 + 0) / 3. Its format score is a score all the same.
    assert m["reward/total/mean"] == pytest.approx(4 / 3)
    assert (m["reward/total/min"], m["reward/total/max"]) == (0.0, 3.0)
    assert m["reward/total/std"] == pytest.approx(math.sqrt((1 / 9 + 25 / 9 + 16 / 9) / 3))
    assert m["reward/total/p50"] == 1.0
    assert m["reward/consistency/mean"] == pytest.approx((0.5 + 0.9 + 0.0) / 3)
    assert m["reward/format/mean"] == pytest.approx(2 / 3)
    assert m["reward/failed_frac"] == 0.25
    assert m["reward/outcome/scored"] == 0.5
    assert m["reward/outcome/malformed_response"] == m["reward/outcome/judge_timeout"] == 0.25
    assert m["reward/outcome/reranker_unavailable"] == 0.0


def test_reward_of_dialogues_is_shown_where_their_turns_have_none():
    """Else a run that completes every case would have a reward of 0."""
    end = EpisodeResult(outcome="ended", components=(Component(name="reward", outcome=Scored(value=0.8), weight=1.0),))
    turns = [replace(record(0, 0.0), components=()), replace(record(0, 0.0), components=(), episode=end)]
    assert reward_metrics(turns)["reward/total/mean"] == 0.8
    assert reward_metrics([record(0, 0.5), replace(record(0, 0.7), episode=end)])["reward/total/mean"] == 0.6


def test_turns_without_a_reward_are_not_in_the_mean_of_the_others():
    bare = replace(record(0, 0.0), components=())
    assert reward_metrics([record(0, 0.5), bare, record(0, 0.7)])["reward/total/mean"] == pytest.approx(0.6)


def test_dialogue_that_failed_before_its_first_turn_has_no_length():
    end, failed = EpisodeResult(outcome="ended"), EpisodeResult(outcome="failed")
    turns = [record(0, 0.5), replace(record(0, 0.7), key=replace(record(0, 0.7).key, turn=3), episode=end)]
    turns = [replace(r, response_tokens=5) for r in turns]
    lost = replace(record(1, JudgeTimeout()), components=(), episode=failed)
    m = episode_metrics([*turns, lost])
    assert m["episodes/turns/mean"] == 4 and m["episodes/failed_frac"] == 0.5
    assert m["episodes/tokens/mean"] == 10


def test_failed_dialogue_does_not_hide_the_rewards_of_others():
    end = EpisodeResult(outcome="ended", components=(Component(name="reward", outcome=Scored(value=0.8), weight=1.0),))
    failed = record(0, JudgeTimeout(), components=[part(TURN_REWARD, JudgeTimeout())])
    assert not has_reward(failed) and has_reward(record(0, 1.0, components=[part(TURN_REWARD, Scored(value=1.0))]))
    assert has_reward(record(0, JudgeTimeout(), components=[part("consistency", JudgeTimeout())]))
    assert not has_reward(replace(record(1, 0.0), components=(), episode=end))


def test_responses_scored_too_late_count_as_stale_and_not_as_failed():
    parts = [part("consistency", Scored(value=0.5)), part("format", Scored(value=1.0), weight=0.2)]
    m = reward_metrics([record(0, 1.0), record(1, Stale(), components=parts)])
    assert (m["reward/failed_frac"], m["reward/outcome/stale"]) == (0.0, 0.5)


def test_means_of_total_and_components_are_over_the_same_responses():
    parts = [part("consistency", Scored(value=0.5)), part("format", Scored(value=1.0), weight=0.2)]
    trained, stale = record(0, 0.7, components=parts), record(1, Stale(), components=parts)
    other = record(2, 0.2, components=[part("consistency", Scored(value=0.0)), parts[1]])
    for records in ([trained, other], [stale, other]):
        m = reward_metrics(records)
        assert m["reward/total/mean"] == pytest.approx(m["reward/consistency/mean"] + 0.2) == pytest.approx(0.45)


def test_rewards_of_stale_dialogues_count():
    end = EpisodeResult(outcome="ended", components=(Component(name="reward", outcome=Scored(value=0.8), weight=1.0),))
    turns = [replace(record(0, Stale()), components=()), replace(record(0, Stale()), components=(), episode=end)]
    assert reward_metrics(turns)["reward/total/mean"] == 0.8


def test_step_with_only_failures_has_no_mean():
    m = reward_metrics([record(0, RerankerUnavailable())])
    assert m["reward/failed_frac"] == m["reward/outcome/reranker_unavailable"] == 1.0
    assert "reward/total/mean" not in m
    assert "reward/consistency/mean" not in m
    assert reward_metrics([]) == {} == router_metrics([])


def test_router_metrics_match_hand_computed_values():
    bands = ["below", "inside", "inside", "above", "inside", "tool_match", "type_mismatch", "type_mismatch"]
    calls = {
        0: (call("reranker", tokens=10), call("judge", tokens=30, cost=0.5)),
        1: (call("reranker", tokens=12),),
    }
    # The reply of index 4 lies inside by the reference that decided, but another one had to go to the judge.
    scores = {4: (ReferenceScore(reference=0, s_r=0.9), ReferenceScore(reference=1, s_r=0.1, s_j=0.2))}
    m = router_metrics(
        [
            record(i, band=b, calls=calls.get(i, ()), reference_scores=scores.get(i, ()), seconds=float(i))
            for i, b in enumerate(bands)
        ]
    )
    assert m["router/escalated_frac"] == 3 / 5
    assert (m["router/band/below_frac"], m["router/band/inside_frac"], m["router/band/above_frac"]) == (0.2, 0.6, 0.2)
    assert (m["router/tool_match_frac"], m["router/type_mismatch_frac"]) == (1 / 8, 2 / 8)
    assert (m["router/tokens/reranker"], m["router/tokens/judge"], m["router/cost/judge"]) == (24.0, 31.0, 0.5)
    assert m["router/seconds/max"] == 7.0


def test_escalated_frac_is_absent_without_cascaded_replies():
    m = router_metrics([record(0, band="tool_match"), record(1, band="judge_only")])
    assert "router/escalated_frac" not in m
    assert m["router/tool_match_frac"] == 0.5


@given(st.lists(st.tuples(outcomes, st.sampled_from(BANDS)), min_size=1, max_size=5))
def test_fractions_of_outcomes_and_bands_sum_to_one(made):
    rs = [record(i, outcome, band=band) for i, (outcome, band) in enumerate(made)]
    outcome = [v for k, v in reward_metrics(rs).items() if k.startswith("reward/outcome/")]
    bands = [v for k, v in router_metrics(rs).items() if k.startswith("router/band/")]
    assert sum(outcome) == pytest.approx(1.0)
    assert not bands or sum(bands) == pytest.approx(1.0)


def test_all_metrics_of_records_are_in_the_glossary():
    r = record(0, 1.0, calls=(call("reranker"), call("judge")), band="below")
    check_names({**reward_metrics([r]), **router_metrics([r])}, strict=True)


def test_percentile_interpolates_between_neighbours():
    assert [percentile([4.0, 1.0, 2.0], q) for q in (0, 25, 50, 75, 100)] == [1.0, 1.5, 2.0, 3.0, 4.0]
    with pytest.raises(ValueError):
        percentile([], 50)


def test_reduce_stats_returns_the_requested_statistics():
    assert reduce_stats("a/b", [1.0, 2.0, 6.0], ("mean", "max", "p50", "sum")) == {
        "a/b/mean": 3.0,
        "a/b/max": 6.0,
        "a/b/p50": 2.0,
        "a/b/sum": 9.0,
    }
    assert reduce_stats("a/b", []) == {}
    assert reduce_stats("a/b", [2.0], ("std",)) == {"a/b/std": 0.0}


def test_histogram_matches_hand_computed_values():
    counts, edges = histogram([0.0, 0.1, 0.5, 1.0, 9.0, -9.0, math.nan], bins=2, low=0.0, high=1.0)
    assert edges == [0.0, 0.5, 1.0]
    assert counts == [3, 3]
    assert histogram([], bins=2) == ([0, 0], edges)
    assert sum(histogram([1.0, math.nextafter(1.0, 2.0)])[0]) == 2


@given(st.lists(st.floats(-1e6, 1e6)), st.integers(1, 30))
def test_histogram_counts_every_value(values, bins):
    counts, edges = histogram(values, bins=bins)
    assert sum(counts) == len(values)
    assert len(edges) == bins + 1
    assert edges == sorted(edges)


# --- the file ----------------------------------------------------------------------------------


def test_writer_writes_one_object_per_step(tmp_path):
    w = MetricsWriter(tmp_path / "m.jsonl", clock=lambda: 5.0)
    w.write(1, "sft", {"sft/loss": 2.5})
    w.write(1, "rl", {"policy/entropy": 1.0, "policy/grad_norm": float("nan")})
    lines = (tmp_path / "m.jsonl").read_text().splitlines()  # readable before it is closed
    assert json.loads(lines[0]) == {"step": 1, "stage": "sft", "time": 5.0, "sft/loss": 2.5}
    assert json.loads(lines[1])["policy/grad_norm"] is None


def test_truncated_line_is_skipped_and_then_removed(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1, "stage": "rl", "time": 0}\n{"step": 2, "sta')
    assert [r["step"] for r in read_jsonl(path)] == [1]
    w = MetricsWriter(path)
    w.write(2, "rl", {})
    assert [r["step"] for r in read_jsonl(path)] == [1, 2]
    assert list(read_jsonl(tmp_path / "none")) == []


def test_repeated_step_counts_once(tmp_path):
    w = MetricsWriter(tmp_path / "m.jsonl")
    w.write(2, "rl", {"alarm/truth_drop": 1.0})
    w.write(2, "rl", {"policy/loss": 2.0})
    w.write(2, "eval-rl", {"eval/rl/n": 4.0})
    w.write(2, "eval-rl", {"eval/rl/reward/total": 2.0})
    step, evaluation = read_metrics(tmp_path / "m.jsonl")
    assert "alarm/truth_drop" not in step and step["policy/loss"] == 2.0
    assert (evaluation["eval/rl/n"], evaluation["eval/rl/reward/total"]) == (4.0, 2.0)
    (tmp_path / "m.jsonl").unlink()
    w = MetricsWriter(tmp_path / "m.jsonl")
    for step, value in ((1, 0.1), (2, 0.2), (2, 0.9), (3, 0.3)):
        w.write(step, "rl", {"reward/total/mean": value})
    assert [(r["step"], r["reward/total/mean"]) for r in read_metrics(tmp_path / "m.jsonl")] == [
        (1, 0.1),
        (2, 0.9),
        (3, 0.3),
    ]


def test_damaged_row_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text('{"stage": "rl", "step": 1}\n{"a": 1}\n')
    with pytest.raises(RunFolderError, match=r"m\.jsonl:2: .*has no `stage` and `step`"):
        read_metrics(tmp_path / "m.jsonl")


# --- names -------------------------------------------------------------------------------------


def test_unknown_name_raises_in_tests(tmp_path):
    w = MetricsWriter(tmp_path / "m.jsonl")  # strict by the environment of these tests
    with pytest.raises(UnknownMetric, match="reward/total/meen"):
        w.write(1, "rl", {"reward/total/mean": 1.0, "reward/total/meen": 1.0})


def test_unknown_name_warns_once_in_production(tmp_path, monkeypatch, caplog):
    monkeypatch.delenv(glossary.STRICT_ENV)
    monkeypatch.setattr(glossary, "_warned", set())
    w = MetricsWriter(tmp_path / "m.jsonl")
    with caplog.at_level(logging.WARNING):
        for step in (1, 2, 3):
            w.write(step, "rl", {"odd/name": 1.0})
    assert [r.message.split(": ")[1] for r in caplog.records] == ["odd/name"]
    assert [r["odd/name"] for r in read_jsonl(tmp_path / "m.jsonl")] == [1.0, 1.0, 1.0]


def test_lookup_matches_name_patterns():
    assert lookup("reward/rules/mean").pattern == "reward/<component>/mean"
    assert lookup("reward/total/mean").pattern == "reward/total/mean"
    assert lookup("eval/rl-5/reward/total").unit == "reward"
    assert lookup("reward/a/b/mean") is None
    assert lookup("Reward/total/mean") is None
    assert lookup("") is None


def test_glossary_has_no_duplicates_and_renders_as_tables():
    patterns = [m.pattern for m in METRICS]
    assert len(set(patterns)) == len(patterns)
    page = docs_site.metrics().splitlines()
    lines = [line for line in page if line.startswith("|")]
    assert len(lines) == len(METRICS) + 2 * sum(line.startswith("## ") for line in page)
    assert all(line.count("|") - line.count("\\|") == 5 for line in lines)
