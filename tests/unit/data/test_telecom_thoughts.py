"""Why the agent of a generated dialogue acts: the sentence follows from what the procedure saw."""

from __future__ import annotations

import dataclasses

import pytest

from hamr.config.schema import SageDataConfig
from hamr.data.samples import from_json, to_json
from hamr.data.sft_items import decision_item, item_from_json, item_to_json
from hamr.data.telecom import generate
from hamr.data.telecom_thoughts import thought_of
from hamr.errors import DataError

SAMPLES = generate(SageDataConfig(train=120, validation=8, test=8, seed=3)).train
ENDS = {
    "ask_profile": "I ask whether it is data or voice.", "recommend": "I make the offer that fits.",
    "penalty_notice": "a fee is due: I name it first.", "goodbye": "I say goodbye.",
    "change_order": "nothing stands in the way: I change the order.", "transfer_human": "I hand over to a person.",
}  # fmt: skip


def test_every_act_has_its_reason_and_what_was_shown_last_stands_before_it() -> None:
    found = {sample.meta["act"]: thought_of(sample) for sample in SAMPLES}
    assert found.keys() == ENDS.keys()
    for sample in SAMPLES:
        thought, fields = thought_of(sample), sample.meta["fields"]
        assert thought.endswith(ENDS[sample.meta["act"]])
        assert thought.startswith("They are angry about the fee") == (fields.get("EmotionTag") == "Discontent")
        assert ("name it first" in thought) == (sample.meta["act"] == "penalty_notice")


def test_a_sample_from_a_file_has_the_same_and_makes_items_in_both_orders() -> None:
    sample = SAMPLES[0]
    assert thought_of(from_json(to_json(sample))) == thought_of(sample)
    for order in (False, True):
        item = decision_item(sample, sample.references[0].action, thought_of(sample), answer_first=order)
        assert item_from_json(item_to_json(item)).text == item.text


def test_others_do_not_know_their_why() -> None:
    with pytest.raises(DataError, match="not one of the generated telecom dialogues"):
        thought_of(dataclasses.replace(SAMPLES[0], meta={}))
