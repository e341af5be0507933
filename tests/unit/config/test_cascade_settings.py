"""Contradictory settings of a moving cascade: each message names both values and the remedy."""

from __future__ import annotations

import pytest

from hamr.config.load import load_config
from hamr.errors import BadInput

HYBRID = "rewards.consistency"
ADAPTIVE, SHARE = f"{HYBRID}.adaptive.enabled=true", f"{HYBRID}.budget.judge_frac=0.3"
AUDITS = f"{HYBRID}.audit_frac=0.05"


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ([ADAPTIVE], "audit_frac=0: without audits"),
        ([SHARE, f"{HYBRID}.mode=reranker"], "budget.judge_frac=0.3 but mode='reranker'"),
        ([ADAPTIVE, AUDITS, SHARE, f"{HYBRID}.adaptive.limit=0.1"], "set limit to null"),
        ([SHARE, f"{HYBRID}.audit_frac=0.4"], "judge_frac=0.3 is below audit_frac=0.4"),
        ([SHARE, f"{HYBRID}.budget.min_rows=5000"], "min_rows=5000 is above window=2000"),
        ([SHARE, f"{HYBRID}.budget.max_move=0"], "must be greater than 0"),
    ],
)
def test_contradictory_cascade_settings_are_rejected(overrides: list[str], says: str) -> None:
    with pytest.raises(BadInput) as caught:
        load_config(overrides)
    assert says in str(caught.value)


@pytest.mark.parametrize("overrides", [[], [ADAPTIVE, AUDITS], [SHARE], [ADAPTIVE, AUDITS, SHARE]])
def test_compatible_cascade_settings_are_accepted(overrides: list[str]) -> None:
    wanted = load_config(overrides).rewards.consistency
    assert wanted.adaptive.enabled == (ADAPTIVE in overrides)
    assert (wanted.budget.judge_frac is not None) == (SHARE in overrides)
