from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hamr.config.schema import SageDataConfig
from hamr.data.pairs import LABELS, read_pairs, reply_pairs, unlabelled_pairs
from hamr.data.rendering import dialogue_text
from hamr.data.sage_samples import generate_samples
from hamr.data.samples import act_of
from hamr.errors import DataError
from hamr.procedures.acts import Context, SageActs
from hamr.types import Reference, Reply, ServiceSample, ToolCall, Turn


@pytest.fixture(scope="module")
def train():
    return generate_samples(SageDataConfig()).train


@pytest.fixture(scope="module")
def pairs(train):
    return reply_pairs(train, 900, 3)


def test_pairs_are_balanced_different_and_repeatable(train, pairs):
    assert len(pairs) == len(set(pairs)) == 900
    assert Counter(p.label for p in pairs) == dict.fromkeys(LABELS, 300)
    assert reply_pairs(train, 900, 3) == pairs
    assert reply_pairs(train, 900, 4) != pairs


def test_thoughts_are_short_and_histories_come_from_samples(train, pairs):
    histories = {dialogue_text(s) for s in train}
    for pair in pairs:
        assert 3 <= len(pair.thought.split()) <= 16
        assert pair.history in histories


def by_reference(samples):
    """(history, reference) -> the sample's right, partial and negated texts."""
    found = {}
    for sample in samples:
        acts, context, act = SageActs.of(sample), Context.of(sample), act_of(sample)
        texts = (
            acts.right(act, context),
            acts.related_wordings(act, context, "partial"),
            acts.related_wordings(act, context, "negated"),
        )
        found.update({(dialogue_text(sample), text): texts for text in acts.texts(act, context)})
    return found


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_labels_match_the_rule_engine(split):
    samples = getattr(generate_samples(SageDataConfig()), split)
    known = by_reference(samples)
    kinds = Counter()
    for pair in reply_pairs(samples, 400, 5):
        right, partial, negated = known[pair.history, pair.statement_a]
        if pair.label == "inconsistent":
            assert pair.statement_b not in {*right, *partial}
            kinds[pair.statement_b in negated] += 1
        else:
            assert pair.statement_b in (right if pair.label == "consistent" else partial)
    assert kinds[True] and kinds[False]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_scenarios_without_partial_wordings_give_two_labels(language):
    made = generate_samples(
        SageDataConfig(scenario="airline_refund", language=language, train=120, validation=12, test=12)
    )
    pairs = reply_pairs(made.train, 120, 1)
    assert {pair.label for pair in pairs} == {"consistent", "inconsistent"}
    known = by_reference(made.train)
    for pair in pairs:
        right, _, _ = known[pair.history, pair.statement_a]
        assert (pair.statement_b in right) == (pair.label == "consistent")


def test_consistent_pairs_are_mostly_paraphrases(pairs):
    consistent = [p for p in pairs if p.label == "consistent"]
    verbatim = sum(p.statement_a == p.statement_b for p in consistent) / len(consistent)
    assert 0.05 < verbatim < 0.25


def test_wrong_amounts_also_occur_in_verbatim_wording(train):
    notices = [sample for sample in train if act_of(sample) == "ask EmotionTag"]
    near = 0
    for pair in reply_pairs(notices, 600, 0):
        a, b = pair.statement_a.split(), pair.statement_b.split()
        near += len(a) == len(b) and sum(x != y for x, y in zip(a, b, strict=True)) == 1
    assert near > 10


def _logged(identity, *replies, cluster=None):
    return ServiceSample(
        id=identity,
        ticket={},
        policy="",
        tools=(),
        history=(Turn(role="customer", content=f"question {identity}"),),
        references=tuple(Reference(action=Reply(content=r)) for r in replies),
        meta={"cluster": cluster} if cluster else {},
    )


def test_logged_samples_pair_own_references_against_other_clusters():
    samples = [
        _logged("a", "Your name?", "What is your name?", cluster="name"),
        _logged("b", "Who are you?", cluster="name"),
        _logged("c", "Goodbye!", "Bye."),
        _logged("d", "bye", "See you."),
    ]
    made = reply_pairs(samples, 60, 0)
    farewell, naming = {"Goodbye!", "Bye.", "bye", "See you."}, {"Your name?", "What is your name?", "Who are you?"}
    assert {p.label for p in made} == {"consistent", "inconsistent"}
    for pair in made:
        together = any({pair.statement_a, pair.statement_b} <= group for group in (farewell, naming))
        assert together == (pair.label == "consistent")
    assert ("Who are you?", "Your name?") not in {(p.statement_a, p.statement_b) for p in made}


def test_replies_of_one_cluster_are_never_inconsistent():
    names = {
        "Your name?": "cluster 1",
        "Who are you?": "cluster 1",
        "Goodbye!": "cluster 2",
        "It costs $3.": "cluster 3",
    }
    samples = [replace(_logged(text, text), meta={"reply_clusters": [name]}) for text, name in names.items()]
    for pairs in (reply_pairs(samples, 60, 0), unlabelled_pairs(samples, 60, 0)):
        wrong = [pair for pair in pairs if pair.label == "inconsistent" and pair.statement_b in names]
        assert wrong and all(names[pair.statement_a] != names[pair.statement_b] for pair in wrong)


def test_few_samples_give_fewer_pairs_than_requested():
    assert len(reply_pairs([_logged("a", "One.", "Two.")], 50, 0)) == 2


def test_samples_without_replies_raise_an_error(train):
    calls = [s for s in train if act_of(s) == "TransHuman"]
    assert all(isinstance(s.references[0].action, ToolCall) for s in calls)
    for nothing in ([], calls):
        with pytest.raises(DataError, match="no sample has a reply"):
            reply_pairs(nothing, 5, 0)


def test_labelled_pairs_are_read(tmp_path):
    path = tmp_path / "pairs.jsonl"
    history = [{"role": "customer", "content": "Hi"}]
    row = {"content_A": "Yes.", "content_B": "No.", "label": "inconsistent", "history": history, "why": "?"}
    path.write_text(json.dumps(row))
    [pair] = read_pairs(path)
    assert (pair.history, pair.statement_a, pair.statement_b) == ("Customer: Hi", "Yes.", "No.")
    assert pair.label == "inconsistent"


def test_numbers_are_labels(tmp_path):
    path, pair = tmp_path / "pairs.jsonl", {"content_A": "Yes.", "content_B": "No."}
    path.write_text("".join(json.dumps({**pair, "label": label}) + "\n" for label in (1, 0.5, 0, 1.0)))
    assert [pair.label for pair in read_pairs(path)] == ["consistent", "partial", "inconsistent", "consistent"]


@pytest.mark.parametrize(
    ("change", "field"),
    [({"label": "same"}, "label"), ({"label": 0.7}, "label"), ({"label": True}, "label"),
     ({"content_A": 3}, "content_A"), ({"content_B": ""}, "content_B"),
     ({"history": "Hi"}, "history"), ({"history": [{"role": "boss"}]}, "history[0].role")],
)  # fmt: skip
def test_malformed_pairs_name_line_and_field(tmp_path, change, field):
    good = {"content_A": "Yes.", "content_B": "No.", "label": "partial"}
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps(good) + "\n" + json.dumps({**good, **change}))
    with pytest.raises(DataError) as caught:
        read_pairs(path)
    assert caught.value.where == f"{path}:2: {field}"


def test_the_public_pairs_can_be_read():
    folder = os.environ.get("HAMR_PUBLIC_DATA")
    if not folder:
        pytest.skip("HAMR_PUBLIC_DATA is not set")
    pairs = read_pairs(Path(folder) / "consistency_pairs.jsonl")
    assert Counter(p.label for p in pairs) == {"consistent": 250, "inconsistent": 250}


@pytest.mark.parametrize(("replies", "labels"), [(["Hi"], 1), (["Your fee is $4.", "您的费用是四元。"] * 10, 10)])
def test_unlabelled_pairs_contrast_a_reference_with_other_replies(replies, labels):
    samples = [
        ServiceSample(id=str(i), ticket={}, policy="", tools=(), history=(), references=(reference,))
        for i, text in enumerate(replies)
        if (reference := Reference(action=Reply(content=text)))
    ]
    pairs = unlabelled_pairs(samples, 2 * labels, 3)
    for pair in pairs:
        if pair.label == "consistent":
            assert pair.statement_b.endswith(pair.statement_a) and pair.statement_b != pair.statement_a
        else:
            assert pair.statement_a not in pair.statement_b
    assert {pair.label for pair in pairs} == {"consistent", "inconsistent"}
    assert pairs == unlabelled_pairs(samples, 2 * labels, 3)
