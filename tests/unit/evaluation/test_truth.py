"""Exact act: replies are told apart by act and facts."""

from __future__ import annotations

import pytest

from hamr.config.schema import SageDataConfig
from hamr.data.telecom import generate, wordings
from hamr.evaluation.held_out import summarise
from hamr.evaluation.truth import ExactAct
from hamr.types import Action, Band, Reply, RewardRecord, SampleKey, Scored, ServiceSample, ToolCall

SPLITS = generate(SageDataConfig(train=120, validation=20, test=60, seed=3))
RULE = ExactAct.of((*SPLITS.train, *SPLITS.validation, *SPLITS.test))
ACTS = ("ask_profile", "recommend", "penalty_notice", "goodbye", "confirm_change", "confirm_cancel", "hand_over")


def first(act: str) -> ServiceSample:
    return next(s for s in SPLITS.test if s.meta["act"] == act and s.meta["slots"]["fee"] != "0")


def exact(text: str | None, sample: ServiceSample) -> bool:
    assert RULE is not None
    return RULE.is_exact(None if text is None else Reply(content=text), sample)


def test_no_wording_of_another_act_passes_in_any_split_s_words() -> None:
    for sample in SPLITS.test:
        for split in ("train", "validation", "test"):
            for act in ACTS:
                if act != sample.meta["act"]:
                    assert not any(exact(text, sample) for text in wordings(act, sample.meta["slots"], split))


def test_references_pass_and_so_do_another_split_s_words_with_the_right_facts() -> None:
    assert RULE is not None
    assert all(RULE.is_exact(r.action, s) for s in SPLITS.test for r in s.references)
    sample = first("recommend")
    slots = sample.meta["slots"]
    assert exact(f"I recommend {slots['package']} for ${slots['price']}. Shall I switch you?", sample)
    assert exact(f"i recommend {slots['package']} at ${slots['price']}, shall I switch you", sample)


@pytest.mark.parametrize(
    "text",
    [
        "I recommend {other_package} for ${price}. Shall I switch you?",
        "I recommend {package} for ${other_price}1. Shall I switch you?",
        "I recommend {package}. Shall I switch you?",
        "I recommend {package} for ${price} and ${price}0. Shall I switch you?",
        "I would not recommend anything, that is fine. Have a nice day, goodbye!",
        "recommend",
        "",
    ],
)
def test_wrong_or_missing_facts_fail(text: str) -> None:
    sample = first("recommend")
    assert not exact(text.format(**sample.meta["slots"]), sample)


def test_calls_need_every_argument_and_a_malformed_response_fails() -> None:
    assert RULE is not None
    sample = next(s for s in SPLITS.test if s.meta["act"] == "change_order")
    assert RULE.is_exact(sample.references[0].action, sample)
    assert not RULE.is_exact(ToolCall(name="change_order", parameters={"package": "Other 1GB"}), sample)
    assert not exact("I have changed it.", sample) and not exact(None, sample)


def test_data_without_acts_have_no_rule() -> None:
    import dataclasses

    assert ExactAct.of([dataclasses.replace(s, meta={}) for s in SPLITS.test]) is None
    assert ExactAct.of([s for s in SPLITS.test if s.meta["act"] == "goodbye"]) is None


def record(sample: ServiceSample, action: Action) -> RewardRecord:
    band: Band = "inside"
    key = SampleKey(run="r", step=0, prompt=sample.id, sample=0)
    return RewardRecord(key=key, total=Scored(value=1.0), components=(), action=action, band=band)


def test_held_out_figures_tell_replies_apart() -> None:
    samples = [first("ask_profile"), first("goodbye")]
    said = Reply(content="That is fine. Have a nice day, goodbye!")
    result = summarise(samples, [record(s, said) for s in samples], truth=RULE)
    assert result.action_accuracy == 1.0, "any reply counts there"
    assert result.exact_act == 0.5
    assert result.exact_by_act["ask_profile"]["share"] == 0.0 and result.exact_by_act["goodbye"]["share"] == 1.0
    assert result.exact_by_act["goodbye"]["low"] < 1.0 and result.exact_by_act["goodbye"]["n"] == 1
    assert result.metrics("rl")["eval/rl/exact_by_act/goodbye"] == 1.0
    assert summarise(samples, [record(s, said) for s in samples]).exact_act is None
