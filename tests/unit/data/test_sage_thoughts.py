"""The thoughts of generated dialogues: the last shown field and the next act."""

from __future__ import annotations

import dataclasses

import pytest

from hamr.config.schema import SageDataConfig
from hamr.data.sage_samples import generate_samples, thought_of
from hamr.data.samples import from_json, to_json
from hamr.data.sft_items import decision_item, item_from_json, item_to_json
from hamr.errors import DataError
from hamr.procedures import load_scenario
from hamr.procedures.acts import ASK
from hamr.procedures.schema import LANGUAGES

SAMPLES = generate_samples(SageDataConfig(train=120, validation=8, test=8, seed=3)).train


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("scenario", ["telecom_package", "online_education", "all"])
def test_thoughts_name_the_last_shown_field_and_the_next_act(scenario, language) -> None:
    config = SageDataConfig(train=90, validation=12, test=12, seed=3, scenario=scenario, language=language)
    for sample in generate_samples(config).train:
        thought, file = thought_of(sample), load_scenario(sample.meta["scenario"]).file
        act, fields = sample.meta["act"], sample.meta["fields"]
        if fields:
            name, value = list(fields.items())[-1]
            assert file.fields[name].meanings[value].of(language) in thought
        wanted = file.fields[act.removeprefix(ASK)] if act.startswith(ASK) else file.actions[act]
        assert wanted.description.of(language) in thought
        assert thought.endswith({"en": ".", "zh": "。"}[language])
        assert ".." not in thought and "。。" not in thought
        assert len(thought.split()) <= 40 if language == "en" else len(thought) <= 60


def test_mood_is_named_only_if_it_was_shown() -> None:
    for sample in SAMPLES:
        angry = sample.meta["fields"].get("EmotionTag") == "Discontent"
        assert thought_of(sample).startswith("The customer is angry about what it costs.") == angry
        assert angry == (sample.meta["act"] == "TransHuman")


def test_thought_survives_the_round_trip_in_both_orders() -> None:
    sample = SAMPLES[0]
    assert thought_of(from_json(to_json(sample))) == thought_of(sample)
    for order in (False, True):
        item = decision_item(sample, sample.references[0].action, thought_of(sample), answer_first=order)
        assert item_from_json(item_to_json(item)).text == item.text


def test_samples_of_other_origins_are_rejected() -> None:
    with pytest.raises(DataError, match="is not a dialogue of a known scenario"):
        thought_of(dataclasses.replace(SAMPLES[0], meta={}))
