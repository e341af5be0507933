"""Correction of records by audits: strata of a reply, its corrected record, its copies, and an audit's residual."""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import replace

from hamr.calibration.audit_correction import WORD_BUCKETS, AuditCorrection, Residual, strata
from hamr.cascade.audit import is_auditable, value_of
from hamr.data.words import MARKS
from hamr.procedures.contract import chat_of
from hamr.rewards.mix import mix
from hamr.types import (
    Audit,
    AuditBy,
    Component,
    Reply,
    RewardCorrection,
    RewardRecord,
    RolloutGroup,
    Scored,
    ServiceSample,
)

_WORD = re.compile(rf"[\u3040-\u30ff\u3400-\u9fff]|[^\W_](?:[^\W_]|[{MARKS}])*")
"""A word, or one character of a script without spaces."""
_MARKUP = re.compile(r"(?m)^\s*(?:[-*#>|]|\d+[.)])\s|[*_`]{2}|</?\w+>|\n\s*\n")
_LENGTHS = (4, 8, 16, 32, 64, 128)
_SIMILARITIES = (0.2, 0.4, 0.6, 0.8)
_REPETITIONS = (0.15, 0.35)


def correct(
    record: RewardRecord, sample: ServiceSample, model: AuditCorrection, propensity: float, by: AuditBy = "judge"
) -> RewardRecord:
    """Return the record with the consistency value corrected, unchanged if the auditor `by` may not audit it.

    An audited reply takes the auditor's reward, another one the cascade's value plus the correction of its strata.
    """
    value = value_of(record)
    if value is None or not is_auditable(record, by) or not isinstance(record.action, Reply):
        return record
    assert record.cascade is not None and record.s_r is not None, "Eq. 4 gave the value"
    # Outside the interval the score of the reranker alone says little about the value.
    score, interval = (record.s_r, record.cascade[:2]) if by == "judge" else (value, (0.0, 1.0))
    reply = _text_to_customer(record.action)
    features = text_features(reply, nearest_reference(record, sample))
    features["words"] = model.word_level(word_buckets(reply))
    own = strata(score, interval, features)
    audited = record.audit.mix if record.audit is not None else None
    correction = RewardCorrection(
        value=value,
        strata=own,
        propensity=propensity,
        shift=model.shift(own),
        residual=None if audited is None else audited - value,
    )
    return _with(record, correction)


def share_audits(group: RolloutGroup) -> RolloutGroup:
    """Return the group in which every corrected reply has the auditor's reward if an identical reply was audited.

    The auditor has answered for that text, so its copies need no estimate and no call of their own. Replies are
    identical if prompt and text are, so that turns of different dialogues are not mixed up. The residuals of copies add
    no evidence: each audit counts once.
    """
    known: dict[tuple[tuple[int, ...], str], float] = {}
    copies = []
    for i, (rollout, record) in enumerate(zip(group.rollouts, group.records, strict=True)):
        if record.correction is None or not isinstance(record.action, Reply):
            continue
        text = rollout.prompt_ids, record.action.content
        if record.audit is not None and record.audit.mix is not None:
            known.setdefault(text, record.audit.mix)
        else:
            copies.append((i, text, record.correction))
    records = list(group.records)
    for i, text, correction in copies:
        if text in known:
            records[i] = _with(records[i], replace(correction, shared=known[text]))
    return replace(group, records=tuple(records)) if known else group


def _with(record: RewardRecord, correction: RewardCorrection) -> RewardRecord:
    """Return the record with its consistency value corrected."""
    reward = Scored(value=corrected_value(correction, record.audit))
    components: Sequence[Component] = tuple(
        replace(c, outcome=reward) if c.name == "consistency" else c for c in record.components
    )
    return replace(record, components=tuple(components), total=mix(components), correction=correction)


def corrected_value(correction: RewardCorrection, audit: Audit | None) -> float:
    """Return the consistency value of a corrected record. The replay of a ledger uses it too."""
    if audit is not None and audit.mix is not None:
        return audit.mix
    return correction.shifted_value if correction.shared is None else correction.shared


def residuals(records: Sequence[RewardRecord], step: int) -> list[Residual]:
    """Return the residuals of the audited ones among corrected records."""
    return [
        Residual(step=step, strata=c.strata, residual=c.residual, words=word_buckets(_text_to_customer(record.action)))
        for record in records
        if (c := record.correction) is not None and c.residual is not None and isinstance(record.action, Reply)
    ]


def gap_of(record: RewardRecord) -> tuple[float, float] | None:
    """Return (S_R, reward without the audit - auditor's reward) of an audited reply inside the interval, else None."""
    value = value_of(record)
    if record.band != "inside" or value is None or record.s_r is None:
        return None
    if record.audit is None or record.audit.mix is None:
        return None
    return record.s_r, value - record.audit.mix


def correction_metrics(records: Sequence[RewardRecord], model: AuditCorrection) -> dict[str, float]:
    """Return `audit/correction_*` of a step: mean and largest absolute correction, and the size of the model in use."""
    moved = [abs(r.correction.shifted_value - r.correction.value) for r in records if r.correction is not None]
    figures = {"audit/correction_audits": float(model.audits), "audit/correction_strata": float(model.strata)}
    if moved:
        figures |= {"audit/correction_mean": sum(moved) / len(moved), "audit/correction_max": max(moved)}
    return figures


def nearest_reference(record: RewardRecord, sample: ServiceSample) -> str:
    """Return the text of the reference that decided the reward of a reranked reply."""
    decisive = next(score.reference for score in record.reference_scores if score.s_r == record.s_r)
    nearest = sample.references[decisive].action
    return _text_to_customer(nearest) if isinstance(nearest, Reply) else ""


def _text_to_customer(reply: Reply) -> str:
    """Return the chat of a reply in SAGE's form, which is all that scorers compare, and the text of another reply."""
    return chat_of(reply.content) or reply.content


def text_features(reply: str, reference: str) -> dict[str, int]:
    """Return the level of each visible feature of a reply, from 0. None needs a model.

    >>> text_features("Thank you! **Thank you!** Goodbye?", "Goodbye and thank you.")
    {'length': 1, 'similarity': 4, 'repetition': 2, 'markup': 1, 'question': 1}
    """
    words, wanted = (_WORD.findall(text.casefold()) for text in (reply, reference))
    distinct = set(words)
    overlap = 2.0 * len(distinct & set(wanted)) / max(1, len(distinct) + len(set(wanted)))
    return {
        "length": _level(len(words), _LENGTHS),
        "similarity": _level(overlap, _SIMILARITIES),
        "repetition": _level(1.0 - len(distinct) / max(1, len(words)), _REPETITIONS),
        "markup": int(_MARKUP.search(reply) is not None),
        "question": int(reply.rstrip(" *_`\"'").endswith(("?", "\uff1f"))),
    }


def word_buckets(reply: str) -> tuple[int, ...]:
    """Return the hash buckets of the words of a reply, in order and without repetition."""
    found = {zlib.crc32(word.encode()) % WORD_BUCKETS for word in _WORD.findall(reply.casefold())}
    return tuple(sorted(found))


def _level(value: float, limits: tuple[float, ...]) -> int:
    return sum(value >= limit for limit in limits)
