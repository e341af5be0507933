from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from hamr.bench.sage.coverage import coverage, plan_dialogues
from hamr.config.sage import SageConfig
from hamr.errors import BadInput
from hamr.procedures import load_scenario, scenario_names
from hamr.procedures.graph import Scenario
from hamr.procedures.schema import LANGUAGES
from hamr.procedures.words import load_words

TELECOM = load_scenario("telecom_package")


@pytest.mark.parametrize("name", scenario_names())
@pytest.mark.parametrize("cover", ["cases", "routes"])
def test_every_path_has_the_requested_number_of_dialogues(name, cover):
    scenario, config = load_scenario(name), SageConfig(cover=cover)
    plans = plan_dialogues(scenario, config)
    rows = coverage(scenario, plans, config)
    assert len(rows) == len(scenario.cases() if cover == "cases" else scenario.paths())
    assert all(row.by_intent + row.by_path >= 5 for row in rows)
    assert all(row.by_path == max(0, 5 - row.by_intent) for row in rows)
    assert {row.route for row in rows} == set(scenario.paths())
    assert sum(row.by_intent + row.by_path for row in rows) == len(plans)


def test_telecom_plan_has_the_expected_customers():
    plans = plan_dialogues(TELECOM, SageConfig())
    assert len(plans) == 36 * 5
    drawn = [plan for plan in plans if plan.source == "intent"]
    assert Counter(plan.intent for plan in drawn) == dict.fromkeys(TELECOM.file.intents, 3)
    personas = Counter(plan.persona for plan in plans)
    assert max(personas.values()) - min(personas.values()) <= 1
    assert len({plan.id for plan in plans}) == len(plans)


@pytest.mark.parametrize("name", scenario_names())
@pytest.mark.parametrize("seed", range(3))
def test_no_customer_of_a_shipped_scenario_has_a_contradictory_level(name, seed):
    scenario, config = load_scenario(name), SageConfig(seed=seed)
    plans = plan_dialogues(scenario, config)
    assert sum(row.contradictions for row in coverage(scenario, plans, config)) == 0
    levels = Counter(plan.level for plan in plans)
    assert min(levels[level] for level in scenario.file.levels) > 0.3 * len(plans), "every level occurs about as often"


def test_coverage_counts_customers_whose_level_contradicts_a_read_field():
    config, angry = SageConfig(), {"EmotionTag": "Discontent"}
    plans = [replace(plan, level="zero") for plan in plan_dialogues(TELECOM, config)]
    reads = [TELECOM.walk(plan.fields, plan.system).read for plan in plans]
    wrong = [
        plan
        for plan, read in zip(plans, reads, strict=True)
        if ("EmotionTag" in read and angry.items() <= plan.fields.items())
        or ("ApplicationTendency" in read and plan.fields["ApplicationTendency"] != "Agree")
    ]
    assert sum(row.contradictions for row in coverage(TELECOM, plans, config)) == len(wrong) > 0


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("name", scenario_names())
def test_customers_without_a_model_speak_by_their_level(name, language):
    """Nothing is added at level zero, a sentence to every second message at weak, and to all at strong."""
    scenario = load_scenario(name)
    words = load_words(scenario, language)
    for plan in plan_dialogues(scenario, SageConfig(per_intent=1, per_path=1, language=language)):
        for number, (text, _, _) in enumerate(plan.messages(scenario, words, "test", Random(0))):
            added = {level for level, ends in words.test.adversity.items() if text.endswith(tuple(ends))}
            adds = plan.level == "strong" or (plan.level == "weak" and number % 2 == 0)
            assert added == ({plan.level} if adds else set())


def test_case_without_a_fitting_level_is_rejected():
    file = TELECOM.file.model_copy(update={"fitting_levels": {"ConsumptionType": {"Change": ()}}})
    with pytest.raises(BadInput, match="fitting_levels.*no level fits this case"):
        plan_dialogues(Scenario(file), SageConfig())


def test_customer_fields_match_the_intent():
    for plan in plan_dialogues(TELECOM, SageConfig()):
        assert TELECOM.file.intents[plan.intent].allows(plan.fields)
        assert plan.system.keys() == {*TELECOM.file.system, *TELECOM.file.facts}


@settings(max_examples=20)
@given(seed=st.integers(0, 10**6), per_intent=st.integers(0, 6), per_path=st.integers(1, 4))
def test_same_configuration_plans_the_same_customers(seed, per_intent, per_path):
    config = SageConfig(seed=seed, per_intent=per_intent, per_path=per_path, cover="routes")
    plans = plan_dialogues(TELECOM, config)
    assert plans == plan_dialogues(TELECOM, config)
    rows = coverage(TELECOM, plans, config)
    assert all(row.by_intent + row.by_path >= per_path for row in rows)


def test_another_seed_plans_other_customers():
    assert plan_dialogues(TELECOM, SageConfig(seed=1)) != plan_dialogues(TELECOM, SageConfig(seed=2))


def test_limit_reduces_the_plan_and_the_coverage_table():
    config = SageConfig(limit=7)
    plans = plan_dialogues(TELECOM, config)
    assert len(plans) == 7
    assert sum(row.by_intent + row.by_path for row in coverage(TELECOM, plans, config)) == 7


def test_limit_draws_from_all_customers():
    """The first customers are those drawn by intent, so a prefix would be biased."""
    plans = plan_dialogues(TELECOM, SageConfig(limit=3 * len(TELECOM.file.intents)))
    assert "path" in {plan.source for plan in plans}


def test_plan_without_customers_is_rejected():
    with pytest.raises(BadInput, match="give no customers"):
        plan_dialogues(TELECOM, SageConfig(per_intent=0, per_path=0))
    with pytest.raises(ValidationError):
        SageConfig(max_turns=0)
