"""Noisy references: their rate, their kind, and the unchanged truth."""

from __future__ import annotations

from collections import Counter

import pytest

from hamr.config.schema import SageDataConfig
from hamr.data.sage_samples import generate_samples
from hamr.data.samples import action_json
from hamr.procedures import load_scenario, scenario_names
from hamr.procedures.acts import ASK, Context, SageActs
from hamr.rewards.truth import ExactAct
from hamr.types import Reply

CONFIG = SageDataConfig(train=300, validation=20, test=40, noise=0.4, seed=5)
NOISY = generate_samples(CONFIG)


def wrong_pairs(splits):
    pairs = list(zip(splits.train, splits.for_sft, strict=True))
    return [(true, seen) for true, seen in pairs if "references" in seen.privileged]


def test_only_the_sft_split_is_corrupted() -> None:
    clean = generate_samples(CONFIG.model_copy(update={"noise": 0.0}))
    assert (NOISY.train, NOISY.validation, NOISY.test) == (clean.train, clean.validation, clean.test)
    assert clean.sft == () and clean.for_sft == clean.train
    for true, seen in zip(NOISY.train, NOISY.for_sft, strict=True):
        assert (seen.id, seen.history, seen.ticket) == (true.id, true.history, true.ticket)
        if "references" in seen.privileged:
            assert seen.privileged["references"] == [action_json(r.action) for r in true.references]
        else:
            assert seen == true


def test_corrupted_references_are_wrong_at_the_configured_rate() -> None:
    rule = ExactAct.of((*NOISY.train, *NOISY.validation, *NOISY.test))
    assert rule is not None
    wrong = wrong_pairs(NOISY)
    assert 0.28 < len(wrong) / len(NOISY.train) < 0.47
    assert not any(rule.is_exact(r.action, true) for true, seen in wrong for r in seen.references)
    assert all(rule.is_exact(r.action, true) for true in NOISY.train for r in true.references)
    arguments = [true for true, seen in wrong if rule.act_of(seen.references[0].action) == true.meta["act"]]
    assert 0 < len(arguments) < len(wrong) / 2, "some name the right act with wrong facts"


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("scenario", [*scenario_names(), "all"])
def test_noise_uses_acts_of_the_same_scenario(scenario: str, language: str) -> None:
    config = CONFIG.model_copy(update={"scenario": scenario, "language": language, "train": 180})
    made = generate_samples(config)
    wrong = wrong_pairs(made)
    assert 0.28 < len(wrong) / len(made.train) < 0.5
    by_scenario = Counter(true.meta["scenario"] for true, _ in wrong)
    assert set(by_scenario) == {s.meta["scenario"] for s in made.train}
    for true, seen in wrong:
        acts, context, own = SageActs.of(true), Context.of(true), true.meta["act"]
        assert [r.action for r in seen.references] != [r.action for r in true.references]
        assert {r.source for r in seen.references} == {"corrupted"}
        tools = {a.tool(n) for n, a in load_scenario(true.meta["scenario"]).file.actions.items() if not a.reply}
        right = set(acts.right(own, context)) if own.startswith(ASK) else set()
        for reference in seen.references:
            if isinstance(reference.action, Reply):
                assert reference.action.content not in right
            else:
                assert reference.action.name in tools


def test_draw_does_not_depend_on_other_samples() -> None:
    assert generate_samples(CONFIG).sft == NOISY.sft
    assert generate_samples(CONFIG.model_copy(update={"seed": 6})).sft != NOISY.sft
