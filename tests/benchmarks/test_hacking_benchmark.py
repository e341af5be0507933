"""benchmarks/hacking.py and hacking_pools.py: replies in a fooling style, and logs with a planted phrase."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from hacking import NO_FOOLING, WORLDS, Arm, World, group_advantages, train
from hacking_pools import PHRASE, is_styled, planted_logs, without_style
from hacking_styles import STYLES, texts

from hamr.config.schema import SageDataConfig
from hamr.data.sage_samples import generate_samples
from hamr.types import Reply


@pytest.mark.parametrize("style", STYLES)
def test_fooling_replies_differ_by_their_style(style: str) -> None:
    true, fools = np.full((4, 6), 0.7), np.zeros((4, 6), dtype=bool)
    fools[:, 0] = True
    plain, styled = (texts(np.random.default_rng(0), true, which, style) for which in (np.zeros_like(fools), fools))
    assert (plain[0, 0] != styled[0, 0]) and len(set(styled[:, 0])) > 1
    again = texts(np.random.default_rng(0), true, fools, style)
    assert (styled == again).all()


def test_world_of_texts_has_the_features_and_words_of_its_replies() -> None:
    [setting] = (world for world in WORLDS if world.name == "markdown")
    world = World(np.random.default_rng(0), setting)
    assert world.features["markup"][world.fools].all() and not world.features["markup"].all()
    assert all(world.words[at] for at in np.ndindex(world.words.shape))
    assert (world.s_r[world.fools] > world.true[world.fools]).all()


def test_failed_rewards_leave_the_baseline_of_their_group() -> None:
    found = group_advantages(np.array([[0.0, 1.0, np.nan]]), normalised=False)
    assert found.tolist() == [[-2.0, 2.0, 0.0]]


@pytest.mark.deep
def test_typed_failures_cost_less_than_zeros() -> None:
    ends = [train(Arm("", judged=True, failing=0.4, zeroed=zeroed), NO_FOOLING, 0)["true"] for zeroed in (False, True)]
    assert ends[0] > ends[1] + 0.01


def test_phrase_is_planted_into_wrong_replies_of_the_logs() -> None:
    samples = generate_samples(SageDataConfig(train=400, validation=1, test=1)).train
    logs = planted_logs(samples, 0.2)
    changed = [(old, new) for old, new in zip(samples, logs, strict=True) if old != new]
    replies = sum(isinstance(s.references[0].action, Reply) for s in samples)
    assert len(changed) / replies == pytest.approx(0.2, abs=0.06)
    for old, new in changed:
        [reference] = new.references
        assert isinstance(reference.action, Reply) and reference.action.content.endswith(PHRASE)
        assert replace(new, references=old.references) == old
    assert (
        is_styled(f"Fine. {PHRASE.upper()}")
        and is_styled("Fine. Thank you and goodbye!")
        and not is_styled("Thank you.")
    )
    assert without_style(Reply(content=f"Fine. {PHRASE}")) == Reply(content="Fine.")
    assert without_style(Reply(content=PHRASE)) == Reply(content="-")
