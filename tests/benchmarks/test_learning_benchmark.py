"""benchmarks/learning.py: the rule as a scorer, the shuffled control, and the crossed bootstrap."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from learning import RuleScorer, ShufflingBatchBuilder, as_rows, compared, crossed, equal_time, from_rows, markdown

from hamr.types import Question
from tests.factories import build, by_index, sample


async def test_rule_scorer_accepts_only_paraphrases_with_right_facts() -> None:
    reference = "For you I recommend Talk 600min at 25 a month. Would you like it?"
    said = {
        "Talk 600min, 25 a month, would fit you well. Shall I book it?": 1.0,
        "Talk 600min, 35 a month, would fit you well. Shall I book it?": 0.0,
        "Ring 1000min, 25 a month, would fit you well. Shall I book it?": 0.0,
        "That is quite all right. Have a good day, goodbye!": 0.0,
    }
    questions = [
        Question(variables={"history": "", "statement_a": reference, "statement_b": response}) for response in said
    ]
    answers = await RuleScorer("reranker", None, Path()).score(questions)
    assert [answer.score for answer in answers] == list(said.values())


async def test_shuffled_rewards_keep_group_values_and_are_repeatable() -> None:
    controller, _, _, _ = build(by_index, n=8)
    (group,) = await controller.score_groups([sample(0)], [controller.request(0, sample(0))])
    shuffling = ShufflingBatchBuilder(algorithm=controller.algorithm, max_new_tokens=8, seed=1)
    dealt = shuffling.rewards(group)
    assert sorted(dealt) == sorted(controller.batches.rewards(group)) and dealt != controller.batches.rewards(group)
    assert dealt == shuffling.rewards(group)


def test_interval_resamples_seeds_and_items() -> None:
    rng = np.random.default_rng(0)
    sure = crossed(np.full((3, 50), 0.4))
    assert (sure["mean"], sure["low"], sure["high"]) == pytest.approx((0.4, 0.4, 0.4))
    items = crossed(0.3 + rng.normal(0, 0.5, size=(1, 120)).repeat(3, axis=0))
    seeds = crossed(0.3 + rng.normal(0, 0.5, size=(3, 1)).repeat(120, axis=1))
    assert items["high"] - items["low"] < seeds["high"] - seeds["low"]


def test_table_has_gain_worst_act_and_control() -> None:
    start = {"a": ("ask", 0.0), "b": ("ask", 1.0), "c": ("order", 0.0)}
    end = {"a": ("ask", 1.0), "b": ("ask", 1.0), "c": ("order", 0.0)}
    found = compared({"true": {0: {"sft": start, "rl": end}}, "sft": {0: {"sft": start}}})
    assert found["true"]["gain"]["mean"] == pytest.approx(1 / 3) == found["true"]["over_sft_only"]["mean"]
    assert found["sft"]["gain"]["mean"] == 0.0
    assert "| true | 0 | 0.333 | 0.667 | +0.333 | +0.00 order |" in markdown(found)


def test_control_trains_as_long_as_the_median_run() -> None:
    given = ["experiment=quickstart", "experiment.sft.steps=100"]
    spent = {f"rl_{seed}": {"timing": {"sft": 50.0, "rl": rl}} for seed, rl in enumerate((70.0, 75.0, 900.0))}
    assert equal_time(given, spent) == 250
    with pytest.raises(SystemExit, match="needs a run of `rl` or `true`"):
        equal_time(given, {})


def test_stored_items_give_the_same_runs_back() -> None:
    start = {"b": ("ask", 1.0), "a": ("order", 0.25)}
    runs = {"rl": {3: {"sft": start, "rl": start}}, "sft": {3: {"sft": {"a": ("order", 0.5), "b": ("ask", 0.0)}}}}
    assert from_rows(json.loads(json.dumps(as_rows(runs)))) == runs
