"""Contradictory settings of a moving cascade: each message names both values and the remedy."""

from __future__ import annotations

import pytest

from hamr.config.load import load_config
from hamr.errors import BadInput

HYBRID = "rewards.consistency"
LIMIT, NARROW = f"{HYBRID}.certificate.limit=0.1", f"{HYBRID}.certificate.narrow=true"
CORRECTION, SHARE = f"{HYBRID}.correction=stratified", f"{HYBRID}.budget.judge_frac=0.3"
RUBRIC = "rewards.rubric"
ITEMS = [f"{RUBRIC}.reading=items", f"{RUBRIC}.weight=1"]
AUDITS, BY = f"{HYBRID}.audit_frac=0.05", f"{HYBRID}.audit.by"


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ([CORRECTION], "correction=stratified but audit_frac=0, so that nothing is audited"),
        ([LIMIT], "certificate.limit=0.1 but audit_frac=0, so that nothing is audited"),
        ([f"{BY}=rules"], "audit.by=rules but audit_frac=0"),
        ([f"{BY}=rules", AUDITS, f"{HYBRID}.mode=soft_judge"], "audit.by=rules but mode='soft_judge'"),
        ([f"{BY}=file", AUDITS], "by=file but file=null; set file"),
        ([f"{BY}=rules", AUDITS, f"{HYBRID}.audit.file=labels.jsonl"], "set by=file or leave file out"),
        ([f"{BY}=ensemble", AUDITS], "by=ensemble but pools=null; set pools"),
        ([f"{BY}=ensemble", AUDITS, f"{HYBRID}.audit.pools=[judge]"], "audit.pools has 'judge', which is not another"),
        (
            [f"{BY}=ensemble", AUDITS, f"{HYBRID}.audit.pools=[nobody]"],
            "audit.pools has 'nobody', which is not another",
        ),
        ([CORRECTION, AUDITS, f"{HYBRID}.mode=reranker"], "correction=stratified but mode='reranker'"),
        ([NARROW, AUDITS], "narrow=true contradicts limit=null"),
        ([NARROW, LIMIT, AUDITS, SHARE], "narrow=true contradicts budget.judge_frac=0.3"),
        ([SHARE, f"{HYBRID}.mode=reranker"], "budget.judge_frac=0.3 but mode='reranker'"),
        ([SHARE, f"{HYBRID}.audit_frac=0.4"], "judge_frac=0.3 is below audit_frac=0.4"),
        ([SHARE, f"{HYBRID}.budget.min_rows=5000"], "min_rows=5000 is above window=2000"),
        ([SHARE, f"{HYBRID}.budget.max_move=0"], "must be greater than 0"),
        ([f"{RUBRIC}.reranker=reranker"], "reranker='reranker' but reading='holistic'"),
        ([f"{RUBRIC}.reranker=judge", *ITEMS], "rubric.reranker='judge' but pools.judge.role='judge'"),
        ([f"{RUBRIC}.reranker=nobody", *ITEMS], "rubric.reranker='nobody' but pools has only"),
    ],
)
def test_contradictory_cascade_settings_are_rejected(overrides: list[str], says: str) -> None:
    with pytest.raises(BadInput) as caught:
        load_config(overrides)
    assert says in str(caught.value)


@pytest.mark.parametrize("overrides", [[], [NARROW, LIMIT, AUDITS], [SHARE], [CORRECTION, AUDITS, SHARE]])
def test_compatible_cascade_settings_are_accepted(overrides: list[str]) -> None:
    wanted = load_config(overrides).rewards.consistency
    assert wanted.certificate.narrow == (NARROW in overrides)
    assert wanted.correction == ("stratified" if CORRECTION in overrides else "off")
    assert (wanted.budget.judge_frac is not None) == (SHARE in overrides)


@pytest.mark.parametrize("word", ["off", "false"])
def test_correction_may_be_written_as_an_unquoted_off(word: str) -> None:
    assert load_config([f"{HYBRID}.correction={word}"]).rewards.consistency.correction == "off"
