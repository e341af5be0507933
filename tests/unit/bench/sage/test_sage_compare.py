"""Ranks, paired tests and seeds of a few turns with known scores."""

from __future__ import annotations

import pytest

from hamr.bench.sage.compare import by_seed, paired_tests, ranks
from hamr.config.sage import SageConfig
from tests.unit.bench.sage.test_sage_metrics import turn

CONFIG = SageConfig(resamples=200)


def averages(**overall):
    return {agent: {name: {"mean": mean} for name in ("overall", "logic", "chat")} for agent, mean in overall.items()}


def test_ranks_are_those_of_the_papers_table_by_group():
    """Overall scores of five models of Table 1; its trailing digits are the ranks among closed and open models."""
    closed = {"claude_sonnet": 71.56, "claude_opus": 72.62, "gemini_pro": 71.40}
    opened = {"deepseek_v32": 71.29, "deepseek_r1": 68.39}
    found = ranks(averages(**closed, **opened), apart=opened)
    assert {agent: place["overall"] for agent, place in found.items()} == {
        "claude_sonnet": 2,
        "claude_opus": 1,
        "gemini_pro": 3,
        "deepseek_v32": 1,
        "deepseek_r1": 2,
    }


def test_ties_share_a_rank_and_unknown_scores_have_none():
    found = ranks(averages(a=50.0, b=70.0, c=50.0, d=40.0, e=None))
    assert [found[agent]["logic"] for agent in "abcde"] == [2, 1, 2, 4, None]


def test_paired_test_compares_the_same_customers_only():
    one = [turn(dialogue=f"d{i}", logic=50.0) for i in range(8)] + [turn(dialogue="only here", logic=0.0)]
    other = [turn(dialogue=f"d{i}", logic=60.0 + i) for i in range(8)] + [turn(dialogue="only there", logic=0.0)]
    [row] = [row for row in paired_tests({"a": one, "b": other}, CONFIG) if row["score"] == "logic"]
    assert (row["first"], row["second"], row["pairs"]) == ("a", "b", 8)
    assert row["difference"]["mean"] == pytest.approx(13.5)
    assert 10.0 < row["difference"]["low"] < 13.5 < row["difference"]["high"] < 17.0
    assert row["p"] == row["adjusted_p"] == pytest.approx(2 / 2**8)


def test_agent_without_a_readable_turn_is_compared_with_zero():
    """As in its averages, by scenario, also where unreadable turns have no score of their own."""
    one = [turn(dialogue=f"d{i}", logic=50.0) for i in range(8)]
    other = [turn(dialogue=f"d{i}", readable=False) for i in range(8)]
    rows = {row["score"]: row for row in paired_tests({"a": one, "b": other}, CONFIG)}
    assert (rows["logic"]["pairs"], rows["logic"]["difference"]["mean"]) == (8, pytest.approx(-50.0))
    assert rows["chat"]["difference"]["mean"] == pytest.approx(-90.0) and "truth" not in rows
    elsewhere = [turn(dialogue="e", scenario="t", logic=70.0)]
    rows = {row["score"]: row for row in paired_tests({"a": one, "b": other + elsewhere}, CONFIG)}
    assert rows["logic"]["pairs"] == 8, "readable turns of another scenario change nothing"
    some = [turn(dialogue="d0", logic=70.0), *other[1:]]
    assert [r["pairs"] for r in paired_tests({"a": one, "b": some}, CONFIG) if r["score"] == "logic"] == [1]


def test_turns_of_one_customer_are_one_pair_and_replacements_count_as_it():
    one = [turn(dialogue="d", number=1, logic=40.0), turn(dialogue="d", number=5, logic=60.0)]
    [row] = [
        r for r in paired_tests({"a": one, "b": [turn(dialogue="d+1", logic=70.0)]}, CONFIG) if r["score"] == "logic"
    ]
    assert (row["pairs"], row["difference"]["mean"], row["p"]) == (1, pytest.approx(20.0), 1.0)


def test_p_values_are_adjusted_over_the_pairs_of_agents():
    same = [turn(dialogue=f"d{i}", logic=50.0) for i in range(6)]
    more = [turn(dialogue=f"d{i}", logic=60.0) for i in range(6)]
    rows = [r for r in paired_tests({"a": same, "b": same, "c": more}, CONFIG) if r["score"] == "logic"]
    assert [row["p"] for row in rows] == pytest.approx([1.0, 2 / 2**6, 2 / 2**6])
    assert [row["adjusted_p"] for row in rows] == pytest.approx([1.0, 3 / 2**6, 3 / 2**6])
    assert paired_tests({"a": same}, CONFIG) == []


def test_seeds_have_their_own_means_and_a_spread():
    found = by_seed({1: {"s": [turn(logic=80.0)]}, 0: {"s": [turn(logic=60.0)], "t": [turn(logic=100.0)]}})
    assert [row["logic"] for row in found["seeds"].values()] == [80.0, 80.0]
    assert list(found["seeds"]) == ["0", "1"]
    assert found["standard_deviation"]["logic"] == 0.0
    assert by_seed({0: {"s": [turn()]}})["standard_deviation"]["logic"] is None
