"""Exact act: replies are distinguished by act and facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hamr.apps.train.held_out import summarise
from hamr.config.schema import SageDataConfig
from hamr.data.sage_samples import generate_samples
from hamr.procedures.acts import Context, SageActs
from hamr.procedures.words import SPLITS
from hamr.rewards.truth import ExactAct, facts, says
from hamr.types import Action, Band, Reference, Reply, RewardRecord, SampleKey, Scored, ServiceSample, ToolCall

CONFIG = SageDataConfig(train=120, validation=30, test=60, seed=3)
GENERATED = generate_samples(CONFIG)
RULE = ExactAct.of((*GENERATED.train, *GENERATED.validation, *GENERATED.test))
OFFER = "ask ApplicationTendency"


def first(act: str) -> ServiceSample:
    return next(
        s for s in GENERATED.test if s.meta["act"] == act and s.meta["fields"].get("ConsumptionProfile") != "Voice"
    )


def exact(text: str | None, sample: ServiceSample) -> bool:
    assert RULE is not None
    return RULE.is_exact(None if text is None else Reply(content=text), sample)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_wordings_of_other_acts_fail_in_every_split(language: str) -> None:
    splits = generate_samples(CONFIG.model_copy(update={"language": language}))
    rule = ExactAct.of((*splits.train, *splits.validation, *splits.test))
    assert rule is not None
    for sample in splits.test:
        acts = SageActs.of(sample)
        assert acts is not None
        assert all(rule.is_exact(r.action, sample) for r in sample.references)
        for split in SPLITS:
            context = Context(split=split, shown=sample.meta["fields"], values=Context.of(sample).values)
            for act in acts.names(split):
                if act != sample.meta["act"]:
                    assert not any(rule.is_exact(Reply(content=t), sample) for t in acts.texts(act, context)), act


def test_wordings_of_another_split_with_right_facts_pass() -> None:
    sample = first(OFFER)
    assert exact("For you I recommend Surf 40GB at 29 a month. Would you like it?", sample)
    assert exact("for you i recommend Surf 40GB at 29 a month, would you like it", sample)


@pytest.mark.parametrize(
    "text",
    [
        "Do you mainly use mobile internet, or do you use mobile internet?",
        "Do you mainly use mobile internet, or do you mainly use mobile internet?",
        "Do you mainly make calls, or do you mainly make calls?",
    ],
)
def test_reply_that_repeats_itself_fails(text: str) -> None:
    """Its words are near a right wording. A policy learned it, and its scorers did not mind."""
    sample = first("ask ConsumptionProfile")
    assert exact("Do you mainly use mobile internet, or do you mainly make calls?", sample)
    assert not exact(text, sample)


def test_words_that_a_known_wording_repeats_may_be_repeated() -> None:
    sample = replace(first("ask ConsumptionProfile"), references=(twice := Reference(action=Reply(
        content="Do you want to write, or do you want to call, and do you want to pay?")),))  # fmt: skip
    rule = ExactAct.of((*GENERATED.train, sample))
    assert rule is not None and rule.is_exact(twice.action, sample)
    assert not rule.is_exact(Reply(content="Do you want to write, or do you want to write?"), sample)


@pytest.mark.parametrize(("text", "right"), [("您要流量还是要通话", True), ("您要流量还是要流量还是要流量", False)])
def test_repeated_characters_are_counted_in_longer_sequences(text: str, right: bool) -> None:
    assert says(text, "您要流量还是要通话") is right


@pytest.mark.parametrize(
    "text",
    [
        "For you I recommend Stream 80GB at 29 a month. Would you like it?",
        "For you I recommend Surf 40GB at 291 a month. Would you like it?",
        "For you I recommend Surf 40GB. Would you like it?",
        "For you I recommend Surf 40GB at 29 or 290 a month. Would you like it?",
        "I would not recommend anything. Have a good day, goodbye!",
        "recommend",
        "",
    ],
)
def test_wrong_or_missing_facts_fail(text: str) -> None:
    assert not exact(text, first(OFFER))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A 70 fee is due.", {"70"}),
        ("For 29 you can get Surf 40GB.", {"29", "Surf 40GB"}),
        ("Order 4711 costs 20.", {"Order 4711", "20"}),
        ("违约金是100元，要继续吗？", {"100"}),
        ("向您推荐Surf 40GB套餐，每月29元。", {"29", "Surf 40GB"}),
    ],
)
def test_facts_are_extracted_in_both_languages(text: str, expected: set[str]) -> None:
    assert facts(text) == expected


def test_calls_need_every_argument_and_a_malformed_response_fails() -> None:
    assert RULE is not None
    sample = next(s for s in GENERATED.test if s.meta["act"] == "ChangeOrder")
    assert RULE.is_exact(sample.references[0].action, sample)
    assert not RULE.is_exact(ToolCall(name="change_order", parameters={"package": "Other 1GB"}), sample)
    assert not RULE.is_exact(ToolCall(name="trans_human", parameters={}), sample)
    assert not exact("I have changed it.", sample) and not exact(None, sample)


def test_data_without_acts_have_no_rule() -> None:
    import dataclasses

    assert ExactAct.of([dataclasses.replace(s, meta={}) for s in GENERATED.test]) is None
    assert ExactAct.of([s for s in GENERATED.test if s.meta["act"] == "GoodBye"]) is None


def record(sample: ServiceSample, action: Action) -> RewardRecord:
    band: Band = "inside"
    key = SampleKey(run="r", step=0, prompt=sample.id, sample=0)
    return RewardRecord(key=key, total=Scored(value=1.0), components=(), action=action, band=band)


def test_held_out_figures_distinguish_replies() -> None:
    samples = [first("ask ConsumptionProfile"), first("GoodBye")]
    said = Reply(content="That is quite all right. Have a good day, goodbye!")
    result = summarise(samples, [record(s, said) for s in samples], truth=RULE)
    assert result.action_accuracy == 1.0, "any reply counts there"
    assert result.exact_act == 0.5
    assert (
        result.exact_by_act["ask ConsumptionProfile"]["share"] == 0.0 and result.exact_by_act["GoodBye"]["share"] == 1.0
    )
    assert result.exact_by_act["GoodBye"]["low"] < 1.0 and result.exact_by_act["GoodBye"]["n"] == 1
    assert result.metrics("rl")["eval/rl/exact_by_act/GoodBye"] == 1.0
    assert summarise(samples, [record(s, said) for s in samples]).exact_act is None
