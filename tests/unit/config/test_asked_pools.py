"""Pools that a job starts: exactly those that its rewards use."""

from __future__ import annotations

import pytest

from hamr.config.load import load_config

SIDE = "pools.side={role: grader, model: smollm2-135m}"
VOTER = "pools.voter={role: judge, model: smollm2-135m, prompt: judge.en}"
ENSEMBLE = [f"rewards.consistency.{key}" for key in ("audit_frac=0.1", "audit.by=ensemble", "audit.pools=[voter]")]


@pytest.mark.parametrize(
    ("overrides", "wanted"),
    [
        ((), {"reranker", "judge"}),
        (("rewards.consistency.mode=reranker",), {"reranker"}),
        (("rewards.consistency.mode=hard_judge",), {"judge"}),
        (("rewards.consistency.weight=0", "rewards.format.weight=1"), set()),
        ((f"+{SIDE}",), {"reranker", "judge"}),
        ((f"+{SIDE}", "rewards.risk.weight=1", "rewards.risk.pool=side"), {"reranker", "judge", "side"}),
        (("rewards.consistency.weight=0", "rewards.dialogue.weight=1"), {"judge"}),
        ((f"+{VOTER}", *ENSEMBLE), {"reranker", "judge", "voter"}),
        (
            ("rewards.consistency.weight=0", "rewards.rubric={weight: 1, reading: items, reranker: reranker}"),
            {"reranker", "judge"},
        ),
        ((f"+{VOTER}", *ENSEMBLE, "rewards.consistency.weight=0", "rewards.format.weight=1"), set()),
    ],
)
def test_pool_without_a_reward_is_omitted(overrides: tuple[str, ...], wanted: set[str]) -> None:
    config = load_config(["pools=paper", *overrides])
    assert set(config.with_asked_pools().pools) == wanted
    assert set(config.rewards.used_pools.values()) == wanted


def test_pool_used_as_a_training_base_is_kept() -> None:
    config = load_config(["pools=cpu_small", "rewards.consistency.mode=soft_judge"])
    assert set(config.rewards.used_pools.values()) == {"judge"}
    assert set(config.with_asked_pools().pools) == {"reranker", "judge"}


def test_pools_in_training_dialogues_are_kept() -> None:
    sage = ["experiment.sage.scenarios=[telecom_package]", "experiment.sage.simulator=side"]
    config = load_config(["pools=paper", f"+{SIDE}", *sage])
    assert config.experiment.sage.dialogue_pools == {"simulator": "side"}
    assert set(config.with_asked_pools(*config.experiment.sage.dialogue_pools.values()).pools) == {
        "reranker",
        "judge",
        "side",
    }
    without = load_config(["pools=paper", f"+{SIDE}", "experiment.sage.simulator=side"])
    assert without.experiment.sage.dialogue_pools == {}
