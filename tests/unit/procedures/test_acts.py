"""The acts of a scenario: their texts and actions fit the context of a decision point."""

from __future__ import annotations

import functools
from dataclasses import replace
from random import Random

import pytest

from hamr.data.language import language_of
from hamr.data.sage_samples import generate
from hamr.procedures import load_scenario, scenario_names
from hamr.procedures.acts import ASK, Context, SageActs
from hamr.procedures.schema import LANGUAGES
from hamr.procedures.words import RELATIONS, SPLITS
from hamr.rewards.truth import facts
from hamr.types import Reply, ToolCall

EVERY = pytest.mark.parametrize("name", scenario_names())
TELECOM_REPLIES = ("ask ConsumptionProfile", "ask ApplicationTendency", "ask EmotionTag", "GoodBye")


@functools.cache
def samples_of(name, language="en", size=60):
    made = generate([load_scenario(name)], dict.fromkeys(SPLITS, size), seed=2, language=language)
    return [sample for split in SPLITS for sample in getattr(made, split)]


@pytest.mark.parametrize("language", LANGUAGES)
@EVERY
def test_references_are_among_the_texts_of_the_gold_act(name, language):
    for sample in samples_of(name, language):
        acts, context, act = SageActs.of(sample), Context.of(sample), sample.meta["act"]
        assert act in acts.names(context.split)
        texts = acts.texts(act, context)
        assert texts and all("{" not in text and "[" not in text for text in texts)
        assert all(language_of(text) == language for text in texts)
        assert set(texts) <= set(acts.right(act, context))
        for reference in sample.references:
            if isinstance(reference.action, Reply):
                assert reference.action.content in texts
            else:
                assert [reference.action] == acts.actions(act, context, Random(0))


def test_texts_follow_the_shown_fields():
    acts = SageActs.of(samples_of("telecom_package")[0])
    values = {"PackageStatus": "Contracted", "Penalty": 70, "CurrentPackage": "Lite 10GB"}
    context = Context(split="test", shown={"ConsumptionProfile": "Data"}, values=values)
    offer = "ask ApplicationTendency"
    assert all("Surf 40GB" in text for text in acts.right(offer, context))
    voice = replace(context, shown={"ConsumptionProfile": "Voice"})
    assert all("Talk 600min" in text for text in acts.right(offer, voice))
    nothing_shown = replace(context, shown={})
    assert acts.texts(offer, nothing_shown) == acts.related_wordings(offer, nothing_shown, "partial") == []
    assert acts.actions(offer, nothing_shown, Random(0)) == []
    assert all(facts(text) == {"70"} for text in acts.right("ask EmotionTag", context))


@pytest.mark.parametrize("act", TELECOM_REPLIES)
@pytest.mark.parametrize("split", SPLITS)
def test_partial_and_negated_texts_are_not_right(act, split):
    acts = SageActs.of(samples_of("telecom_package")[0])
    values = {"PackageStatus": "Contracted", "Penalty": 70, "CurrentPackage": "Lite 10GB"}
    context = Context(split=split, shown={"ConsumptionProfile": "Voice"}, values=values)
    right, partial, negated = acts.right(act, context), *(acts.related_wordings(act, context, r) for r in RELATIONS[1:])
    assert len(right) >= 5 and partial and negated
    assert not set(right) & {*partial, *negated}
    assert not set(partial) & set(negated)


@EVERY
def test_amounts_in_texts_and_calls_match_the_rule_engine(name):
    scenario = load_scenario(name)
    for sample in samples_of(name):
        acts, context = SageActs.of(sample), Context.of(sample)
        for act, action in scenario.file.actions.items():
            if action.amount is None:
                continue
            try:
                amount = scenario.amount(action.amount, context.values)
            except Exception:
                assert acts.texts(act, context) == acts.actions(act, context, Random(0)) == []
                continue
            assert acts.values(act, context)["amount"] == amount
            if not action.reply:
                [call] = acts.actions(act, context, Random(0))
                assert isinstance(call, ToolCall) and call.parameters["amount"] == amount


@pytest.mark.parametrize("language", LANGUAGES)
@EVERY
def test_completed_context_has_texts_for_every_act(name, language):
    rng = Random(1)
    for sample in samples_of(name, language, size=24):
        acts, context = SageActs.of(sample), Context.of(sample)
        whole = acts.complete(context, rng)
        assert whole.shown == {**whole.shown, **context.shown}, "what was shown stays"
        assert set(whole.shown) == set(acts.scenario.file.fields)
        assert all(acts.texts(act, whole) for act in acts.names(context.split) if act.startswith(ASK))
        known = acts.scenario.file.system
        assert not any(whole.values[n] == 0 for n, v in known.items() if v.examples)

    rng = Random(1)
    for sample in samples_of("telecom_package", size=24):
        acts, context = SageActs.of(sample), Context.of(sample)
        other = acts.elsewhere(context, rng)
        assert other.values["Penalty"] != context.values["Penalty"]
        assert other.values["CurrentPackage"] == context.values["CurrentPackage"]
        assert other.split == context.split


def test_samples_of_other_origins_have_no_acts():
    sample = samples_of("telecom_package")[0]
    assert SageActs.of(replace(sample, meta={})) is None
    assert SageActs.of(replace(sample, meta={**sample.meta, "scenario": "mine"})) is None
    assert SageActs.of(replace(sample, meta={"scenario": "telecom_package", "act": "GoodBye"})) is None
