"""Figures of a few turns with known scores."""

from __future__ import annotations

import random

import pytest

from hamr.bench.sage import metrics
from hamr.bench.sage.assessment import Assessment, Worth
from hamr.config.sage import SageConfig
from hamr.procedures.prompts import DIMENSIONS
from hamr.procedures.scores import LogicScore

CONFIG = SageConfig(resamples=400)


def turn(dialogue="d", number=1, logic=100.0, chat=90.0, readable=True, grades=None, alone=None, **changes):
    score = LogicScore(classification=logic / 100, path=logic / 100, action=float(logic == 100), logic=logic)
    overall = None if logic is None or chat is None else 0.8 * logic + 0.2 * chat
    given = {
        "agent": "a",
        "scenario": "s",
        "dialogue": dialogue,
        "level": "zero",
        "intent": "i",
        "turn": number,
        "last": False,
        "faults": () if readable else ("no_json",),
        "fenced": False,
        "readable": readable,
        "chat_words": 10 if readable else None,
        "consensus": None,
        "reference": None,
        "worth": Worth(logic=score, chat=chat, overall=overall)
        if readable
        else Worth(logic=None, chat=None, overall=None),
        "alone": alone or {},
        "grades": grades or {},
        "truth": None,
        "judges_right": None,
        "passed": (),
        "departed": None,
    }
    return Assessment(**{**given, **changes})


def test_means_are_over_readable_turns():
    found = metrics.means([turn(), turn(number=5, logic=50.0, chat=30.0), turn(number=10, readable=False)])
    assert found["logic"] == 75.0
    assert found["chat"] == 60.0
    assert found["overall"] == pytest.approx((98 + 46) / 2)
    assert found["unreadable"] == pytest.approx(100 / 3)
    assert found["chat_length"] == 10


def zero(number, **changes):
    nothing = LogicScore(classification=0.0, path=0.0, action=0.0, logic=0.0)
    return turn(number=number, readable=False, **{"worth": Worth(logic=nothing, chat=0.0, overall=0.0), **changes})


def test_turns_with_zero_count_only_where_readable_turns_have_a_score():
    found = metrics.figures([turn(), zero(5)], CONFIG)
    assert (found["logic"]["mean"], found["overall"]["mean"], found["readable"]["mean"]) == (50.0, 49.0, 50.0)
    unvoted = turn(worth=Worth(logic=None, chat=None, overall=None))
    found = metrics.figures([unvoted, zero(5)], CONFIG)
    assert found["logic"] == found["chat"] == {"mean": None, "low": None, "high": None}
    assert metrics.means([zero(1), zero(5)])["logic"] == 0.0


def test_own_case_is_zero_where_the_last_turn_is_unreadable():
    nothing = LogicScore(classification=0.0, path=0.0, action=0.0, logic=0.0)
    assert metrics.means([turn(), zero(2, last=True, truth=nothing)])["truth"] == 0.0
    assert metrics.means([turn(), turn(number=2, last=True), zero(3, last=True, truth=nothing)])["truth"] is None


def test_unreadable_agent_scores_zero_and_no_turns_score_none():
    nothing = metrics.figures([turn(readable=False)], CONFIG)
    assert nothing["logic"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert nothing["chat_length"]["mean"] is None
    assert metrics.figures([], CONFIG)["logic"] == {"mean": None, "low": None, "high": None}


def test_interval_resamples_whole_dialogues():
    one = metrics.figures([turn(number=n, logic=float(10 * n)) for n in range(1, 10)], CONFIG)["logic"]
    assert one == {"mean": 50.0, "low": pytest.approx(50.0), "high": pytest.approx(50.0)}
    many = [turn(dialogue=str(n), logic=100.0 * (n % 2)) for n in range(100)]
    figure = metrics.figures(many, CONFIG.model_copy(update={"resamples": 4000}))["logic"]
    assert figure["mean"] == 50.0
    # The standard error of a share of a half among 100 is 5 points: 50 +- 9.8; the middle 90 % would end at 41.8.
    assert (figure["low"], figure["high"]) == (pytest.approx(40.2, abs=1.0), pytest.approx(59.8, abs=1.0))
    assert metrics.figures(many, CONFIG) == metrics.figures(many, CONFIG)


def test_scenarios_have_equal_weight():
    by_scenario = {"a": [turn(dialogue=str(n)) for n in range(9)], "b": [turn(logic=50.0)], "c": []}
    assert metrics.average_scenarios(by_scenario, CONFIG)["logic"]["mean"] == 75.0
    assert metrics.average_scenarios({"a": []}, CONFIG)["logic"]["mean"] is None


def test_figures_are_grouped_by_turn_level_fault_and_stage():
    turns = [
        turn(number=1, passed=("stage1", "stage2"), departed="stage2", level="weak"),
        turn(number=5, last=True, logic=40.0, passed=("stage1", "stage2", "stage4")),
        turn(number=1, dialogue="e", last=True, readable=False, faults=("no_json",)),
        turn(number=1, dialogue="f", faults=("chat_long", "path_start")),
    ]
    by_turn = metrics.by_turn(turns)
    assert list(by_turn) == ["1", "5", "last"]
    assert (by_turn["1"]["turns"], by_turn["last"]["turns"]) == (3.0, 2.0)
    assert by_turn["last"]["logic"] == 40.0
    assert list(metrics.by_level(turns, ("zero", "weak", "strong"), CONFIG)) == ["zero", "weak"]
    assert metrics.fault_rates(turns) == {"no_json": 25.0, "chat_long": 25.0, "path_start": 25.0}
    assert metrics.stages(turns) == {
        "stage1": {"passed": 2, "wrong": 0},
        "stage2": {"passed": 2, "wrong": 1},
        "stage4": {"passed": 1, "wrong": 0},
    }


def test_the_execution_gap_is_labels_minus_action():
    assert metrics.execution_gap([turn(), turn(number=5, logic=60.0)]) == pytest.approx(80.0 - 50.0)
    assert metrics.execution_gap([]) is None


def test_residuals_show_where_an_agent_is_better_than_its_total():
    turns = []
    for total in (40.0, 60.0, 80.0):
        for agent, apart in (("fluent", 10.0), ("clumsy", -10.0)):
            grades = {**dict.fromkeys(DIMENSIONS, total / 10), "linguistic_quality": (total + apart) / 10}
            turns.append(turn(agent=agent, dialogue=str(total), chat=total, grades=grades))
    found = metrics.residuals(turns)
    assert found["fluent"]["linguistic_quality"] == pytest.approx(10.0)
    assert found["clumsy"]["linguistic_quality"] == pytest.approx(-10.0)
    assert found["fluent"]["user_satisfaction"] == pytest.approx(0.0, abs=1e-9)
    assert metrics.residuals([]) == metrics.residuals(turns[:2]) == {}


def test_figures_per_single_judge_are_reported():
    harsh = Worth(logic=LogicScore(classification=0, path=0, action=0, logic=20.0), chat=30.0, overall=22.0)
    silent = Worth(logic=None, chat=None, overall=None)
    found = metrics.alone([turn(alone={"x": harsh, "y": silent}), turn(number=5, alone={"x": harsh})])
    assert found["panel"]["logic"] == 100.0
    assert found["x"] == {"overall": 22.0, "logic": 20.0, "chat": 30.0}
    assert found["y"] == {"overall": None, "logic": None, "chat": None}


def test_correlated_dimension_has_r2_1_and_constant_one_none():
    turns = []
    for n, grade in enumerate((3.0, 6.0, 9.0)):
        grades = {**dict.fromkeys(DIMENSIONS, grade), "content_utility": 6.0}
        turns.append(turn(dialogue=str(n), chat=sum(DIMENSIONS[d] * g for d, g in grades.items()) / 10, grades=grades))
    found = metrics.correlation(turns)
    assert found["linguistic_quality"]["r2"] == pytest.approx(1.0)
    assert found["linguistic_quality"]["slope"] == pytest.approx(60 / 45)  # content's quarter stays at 60
    assert found["content_utility"] == {"mean": 60.0, "r2": None, "slope": None}
    assert metrics.correlation([])["content_utility"] == {"mean": None, "r2": None, "slope": None}


def test_scenarios_are_resampled_independently():
    """Equal values at equal positions of all scenarios must not widen the interval of their mean."""
    values = [100.0 * (i < 30) for i in range(60)]

    def width(places):
        turns = {
            name: [turn(dialogue=str(i), scenario=name, logic=values[place], chat=0.0) for i, place in enumerate(order)]
            for name, order in places.items()
        }
        found = metrics.average_scenarios(turns, CONFIG)["overall"]
        return found["high"] - found["low"]

    names = [f"s{k}" for k in range(6)]
    aligned = width({name: range(60) for name in names})
    shuffled = width({name: random.Random(name).sample(range(60), 60) for name in names})
    assert aligned == pytest.approx(shuffled, rel=0.25)
