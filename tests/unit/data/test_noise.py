"""Noisy references: how many, which, and what stays true."""

from __future__ import annotations

from hamr.config.schema import SageDataConfig
from hamr.data.samples import action_json
from hamr.data.telecom import generate
from hamr.evaluation.truth import ExactAct

NOISY = generate(SageDataConfig(train=300, validation=20, test=40, noise=0.4, seed=5))


def test_only_the_sft_split_is_corrupted_and_keeps_the_truth() -> None:
    clean = generate(SageDataConfig(train=300, validation=20, test=40, seed=5))
    assert (NOISY.train, NOISY.validation, NOISY.test) == (clean.train, clean.validation, clean.test)
    assert clean.sft == () and clean.for_sft == clean.train
    for true, seen in zip(NOISY.train, NOISY.for_sft, strict=True):
        assert (seen.id, seen.history, seen.ticket) == (true.id, true.history, true.ticket)
        if "references" in seen.privileged:
            assert seen.privileged["references"] == [action_json(r.action) for r in true.references]
        else:
            assert seen == true


def test_the_share_is_as_asked_and_every_corrupted_reference_is_wrong() -> None:
    rule = ExactAct.of((*NOISY.train, *NOISY.validation, *NOISY.test))
    assert rule is not None
    pairs = list(zip(NOISY.train, NOISY.for_sft, strict=True))
    wrong = [(true, seen) for true, seen in pairs if "references" in seen.privileged]
    assert 0.33 < len(wrong) / len(pairs) < 0.47
    assert not any(rule.is_exact(r.action, true) for true, seen in wrong for r in seen.references)
    assert all(rule.is_exact(r.action, true) for true, _ in pairs for r in true.references)
    arguments = [true for true, seen in wrong if rule.act_of(seen.references[0].action) == true.meta["act"]]
    assert 0 < len(arguments) < len(wrong) / 2, "some name the right act with wrong facts"


def test_the_draw_does_not_depend_on_the_other_samples() -> None:
    again = generate(SageDataConfig(train=300, validation=20, test=40, noise=0.4, seed=5))
    assert again.sft == NOISY.sft
    assert generate(SageDataConfig(train=300, validation=20, test=40, noise=0.4, seed=6)).sft != NOISY.sft


def test_prompts_can_go_without_the_procedure() -> None:
    short = generate(SageDataConfig(train=30, validation=6, test=6, procedure=False, seed=5))
    assert {s.policy for s in (*short.train, *short.test)} == {""}
