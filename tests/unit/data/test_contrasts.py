from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hamr.config.schema import SageDataConfig
from hamr.data.contrasts import (
    ContrastKind,
    contrasts,
    fragment,
    negate,
    other_number,
    repeat_words,
    replies_of,
    shuffle_words,
)
from hamr.data.language import language_of
from hamr.data.sage_samples import generate_samples
from hamr.data.words import plain, repetitions, words_of
from hamr.errors import DataError
from hamr.procedures.acts import Context, SageActs
from hamr.rewards.truth import ExactAct, facts
from hamr.types import Reference, Reply, ServiceSample, ToolCall, Turn


@pytest.fixture(scope="module")
def splits():
    return generate_samples(SageDataConfig())


def logged(identity: str, *replies: str, **meta: object) -> ServiceSample:
    return ServiceSample(
        id=identity,
        ticket={},
        policy="",
        tools=(),
        history=(Turn(role="customer", content="Hello"),),
        references=tuple(Reference(action=Reply(content=text), source="log") for text in replies),
        meta=meta,
    )


def test_acts_alternate_and_the_draw_is_repeatable(splits):
    drawn = contrasts(splits.test, 40, 3)
    assert [c.cluster for c in drawn[:4]] == [
        "GoodBye",
        "ask ApplicationTendency",
        "ask ConsumptionProfile",
        "ask EmotionTag",
    ]
    assert drawn == contrasts(splits.test, 40, 3) != contrasts(splits.test, 40, 4)
    assert {wrong.kind for c in drawn for wrong in c.wrong} == set(get_args(ContrastKind)) - {"policy"}


def with_every_wording(sample):
    acts = SageActs.of(sample)
    texts = acts.right(sample.meta["act"], Context.of(sample))
    return replace(sample, references=tuple(Reference(action=Reply(content=text)) for text in texts))


def test_right_replies_pass_the_exact_rule_and_wrong_ones_fail(splits):
    """The rule knows every wording, but may accept a fragment of a short right reply."""
    rule = ExactAct.of(map(with_every_wording, (*splits.train, *splits.validation, *splits.test)))
    for c in contrasts(splits.train, 60, 5):
        assert c.reference not in c.right
        assert not set(c.right) & {wrong.text for wrong in c.wrong}
        assert all(rule.agree(Reply(content=c.reference), Reply(content=text)) for text in c.right)
        for wrong in c.wrong:
            if wrong.kind in ("act", "fact", "courtesy"):
                assert not rule.agree(Reply(content=c.reference), Reply(content=wrong.text)), wrong


def test_every_other_act_is_a_wrong_reply(splits):
    acts = set(SageActs.of(splits.test[0]).names("test"))
    for c in contrasts(splits.test, 8, 1):
        assert {wrong.act for wrong in c.wrong if wrong.kind == "act"} == acts - {c.cluster}


def test_right_replies_have_the_facts_of_the_reference(splits):
    [c] = [c for c in contrasts(splits.test, 40, 3) if c.cluster == "ask EmotionTag"][:1]
    sample = next(s for s in splits.test if c.reference in replies_of(s))
    assert {c.reference, *c.right} == set(SageActs.of(sample).right("ask EmotionTag", Context.of(sample)))
    [amount] = facts(c.reference)
    assert amount == str(sample.ticket["Penalty"])
    assert all(facts(text) == {amount} for text in c.right)
    assert not any(facts(wrong.text) == {amount} for wrong in c.wrong if wrong.kind == "fact")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_scenario_has_contrasts_in_its_language(language):
    made = generate_samples(SageDataConfig(scenario="all", language=language, train=180, validation=12, test=12))
    drawn = contrasts(made.train, 60, 2)
    for c in drawn:
        assert {"act", "fragment", "shuffled", "off_topic"} <= {wrong.kind for wrong in c.wrong}
        texts = [c.reference, *c.right, *(w.text for w in c.wrong if w.kind in ("act", "courtesy", "off_topic"))]
        assert all(language_of(text) == language for text in texts)


def test_samples_of_any_origin_have_contrasts():
    samples = [
        logged("a", "You can return it within 30 days.", "Returns are possible for 30 days."),
        logged("b", "Your parcel arrives on Monday."),
        logged("c", "Returns are possible for 30 days."),
    ]
    drawn = contrasts(samples, 60, 1)
    assert len({c.cluster for c in drawn}) == 2, "a and c share a reference"
    by_reference = {c.reference: c for c in drawn}
    returns = by_reference["You can return it within 30 days."]
    assert returns.right == ("Returns are possible for 30 days.",)
    kinds = {wrong.kind: wrong.text for wrong in returns.wrong}
    assert kinds["act"] == "Your parcel arrives on Monday."
    assert kinds["negation"] == "You can not return it within 30 days."
    assert kinds["fact"].startswith("You can return it within ") and "30" not in kinds["fact"]
    parcel = by_reference["Your parcel arrives on Monday."]
    assert parcel.right == ("Certainly. Your parcel arrives on Monday.",)


def test_courtesy_in_the_cluster_is_not_wrong():
    closing = logged(
        "a", "Thank you, have a nice day. Goodbye!", "How can I help you?", "Sorry, I did not understand that"
    )
    for c in contrasts([closing, logged("b", "It costs $3.")], 8, 0):
        assert c.reference == "It costs $3." or all(wrong.kind != "courtesy" for wrong in c.wrong)


def test_wrong_replies_come_from_other_clusters_only():
    samples = [
        logged("a", "Your name?", "Who are you?", reply_clusters=["cluster 1", "cluster 1"]),
        logged("b", "What is your name?", reply_clusters=["cluster 1"]),
        logged("c", "It costs $3.", "Your name, and it costs $3.", reply_clusters=["cluster 2", "cluster 1"]),
        logged("d", "Goodbye!", reply_clusters=["cluster 3"]),
    ]
    drawn = contrasts(samples, 90, 1)
    assert [c.cluster for c in drawn[:4]] == ["cluster 1", "cluster 2", "cluster 3", "cluster 1"]
    acts = {c.reference: {w.text for w in c.wrong if w.kind == "act"} for c in drawn}
    assert acts["Your name?"] == acts["What is your name?"] == {"Goodbye!"}, "c asks for a name too"
    assert acts["It costs $3."] == {"Goodbye!"}
    right = {c.reference: c.right for c in drawn}
    assert right["Your name?"] == ("Who are you?",), "b's wording may be right for a or not"
    assert {c.reference for c in drawn if c.cluster == "cluster 2"} == {"It costs $3."}
    assert all(c.cluster in c.accepted for c in drawn)


def test_declared_act_is_the_name_of_what_is_due():
    samples = [
        logged("a", "Your name?", act="ask name"),
        logged("b", "It costs $3.", act="price"),
        logged("c", "Who are you?", act="ask name"),
        logged("d", "Your name?", cluster="identity"),
    ]
    drawn = {c.reference: c for c in contrasts(samples, 60, 1)}
    assert drawn["Who are you?"].cluster == "ask name" and drawn["It costs $3."].cluster == "price"
    assert {"ask name", "identity"} <= drawn["Who are you?"].accepted, "a and d share a reference"
    assert "ask name" not in drawn["It costs $3."].accepted
    assert {wrong.act for wrong in drawn["Who are you?"].wrong if wrong.kind == "act"} == {"price"}


@pytest.mark.parametrize("samples", [[], [logged("a", "Yes."), logged("b", "Yes.")], [logged("a", "Yes.", act="x")]])
def test_contrasts_require_at_least_two_acts(samples):
    with pytest.raises(DataError, match="at least two"):
        contrasts(samples, 4, 0)


def test_tool_calls_only_have_no_contrasts():
    call = Reference(action=ToolCall(name="close", parameters={}), source="log")
    samples = [replace(logged(name), references=(call,)) for name in "ab"]
    with pytest.raises(DataError, match="at least two"):
        contrasts(samples, 4, 0)


@given(st.text(min_size=1, max_size=40).filter(lambda text: plain(text) != ""), st.integers(0, 99))
def test_fragments_use_only_words_of_the_text(text, seed):
    for make in (fragment, shuffle_words):
        assert len(make(text, Random(seed))) <= len(text)
    shuffled = "".join(shuffle_words(text, Random(seed)).split())
    assert Counter(shuffled) - Counter(text) == Counter()


@pytest.mark.parametrize("text", ["Do you call more, or do you use more data?", "请问您平时是上网多还是打电话多"])
@given(seed=st.integers(0, 999))
def test_repeated_words_are_words_of_the_text_in_a_row(text, seed):
    twice = repeat_words(text, Random(seed))
    assert repetitions(twice) and set(words_of(twice)) <= set(words_of(text))


def test_short_text_is_not_repeated():
    assert repeat_words("Goodbye, bye!", Random(0)) is None


@given(st.integers(0, 10**6), st.integers(0, 99))
def test_changed_number_keeps_its_digit_count(number, seed):
    other = other_number(f"It costs ${number}.", Random(seed))
    assert other != f"It costs ${number}." and len(other) == len(f"It costs ${number}.")


@pytest.mark.parametrize(
    ("text", "opposite"),
    [
        ("It is free.", "It is not free."),
        ("You can't.", None),
        ("It will not work, but you can call.", "It will not work, but you can not call."),
        ("您可以退货。", "您不可以退货。"),
        ("好。", None),
    ],
)
def test_negation_inverts_the_sentence(text, opposite):
    assert negate(text) == opposite
