"""Audits of the fast pass: judge a sample of the replies that the cascade did not fully judge.

The judge score of a reply is unknown if the cascade did not call the judge. A share of these replies, selected by a
hash of their keys, is therefore judged for the record. It is a fair sample, so its mean estimates the mean of all of
them. With N replies in the cascade, of which H are not fully judged,

    agreement gap = 1 / N * ( sum over fully judged replies |R - J| + H * mean over audited replies |R - J| ),

where J is the highest S_J over the references of a reply, or over the `judge_best_k` with the highest S_R. This is an
unbiased estimate of the distance between the reward and the score of a judge that sees every reply. (The sum over the
audited replies divided by their share is unbiased too, but it has a higher variance and decreases with every failed
audit.)

Another auditor than the judge audits all replies of the cascade, so that H = N and J is the auditor's score.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from hamr.calibration.prediction_powered import DebiasedMean
from hamr.cascade.consistency import best_references
from hamr.types import CASCADE_BANDS, Audit, AuditBy, RewardRecord, SampleKey, Scored

REPLIES, AUDITS = 2000, 400
"""Number of latest replies and audits in the running metrics."""
FEWEST = 20
"""Minimum number of audits on each side of a comparison."""


def is_audited(key: SampleKey, frac: float) -> bool:
    """Return True if this response is audited: a fair draw of `frac` that depends only on its key.

    >>> is_audited(SampleKey(run="r", step=1, prompt="p", sample=0), 0.0)
    False
    """
    if frac <= 0.0:
        return False
    text = f"audit/{key.run}/{key.step}/{key.prompt}/{key.sample}/{key.attempt}{f'/{key.turn}' if key.turn else ''}"
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < frac * 2**64


def value_of(record: RewardRecord) -> float | None:
    """Return the value of Eq. 4, corrected as if not audited: an audited reply represents those that are not.

    None if Eq. 4 was not used for the reward, gave no reward, or ran without an available judge.
    """
    reward = next((c.value for c in record.components if c.name == "consistency"), None)
    if reward is None or record.band not in CASCADE_BANDS or not record.reference_scores or record.fallback:
        return None
    return reward if record.correction is None else record.correction.shifted_value


def judge_audit(record: RewardRecord) -> Audit | None:
    """Return the audit of a record if the judge is its auditor."""
    return record.audit if record.audit is not None and record.audit.by == "judge" else None


def with_labels(records: Iterable[RewardRecord]) -> list[tuple[RewardRecord, bool]]:
    """Return the records whose audit by the data's rules or a person tells whether the reply is right."""
    audits = [(r, r.audit.best) for r in records if r.audit is not None and r.audit.by in ("rules", "file")]
    return [(record, label >= 0.5) for record, label in audits if label is not None]


@dataclass(frozen=True, kw_only=True)
class _Errors:
    """Errors of the scorers about one reply; the judge's: None without its score. `hidden`: only an audit tells it."""

    reranker: bool
    judge: bool | None
    hidden: bool


class JointErrors:
    """Shares of the last replies about which reranker and judge are wrong. Where both are, no audit by the judge helps.

    A score of at least 0.5 takes a reply for right. Audited replies stand for all those that only an audit tells. If
    none of these is audited, because another auditor than the judge is configured, the shares are those of the replies
    that the cascade has sent to the judge.
    """

    def __init__(self) -> None:
        self._replies: deque[_Errors] = deque(maxlen=REPLIES)

    def add(self, replies: Iterable[tuple[RewardRecord, bool]]) -> dict[str, float]:
        """Add records, each with whether its reply is right, and return `truth/*_wrong_frac`, empty without data."""
        for record, right in replies:
            if record.s_r is not None:
                audit = judge_audit(record)
                s_j = record.s_j if record.s_j is not None else audit.s_j if audit is not None else None
                judge = None if s_j is None else (s_j >= 0.5) != right
                hidden = record.s_j is None
                self._replies.append(_Errors(reranker=(record.s_r >= 0.5) != right, judge=judge, hidden=hidden))
        unjudged = sum(r.hidden for r in self._replies)
        audited = sum(r.hidden and r.judge is not None for r in self._replies)
        weights = [(r, unjudged / audited if r.hidden else 1.0) for r in self._replies if r.judge is not None]
        if not weights:
            return {}
        total = math.fsum(weight for _, weight in weights)
        return {
            "truth/reranker_wrong_frac": math.fsum(weight for r, weight in weights if r.reranker) / total,
            "truth/judge_wrong_frac": math.fsum(weight for r, weight in weights if r.judge) / total,
            "truth/both_wrong_frac": math.fsum(weight for r, weight in weights if r.reranker and r.judge) / total,
        }


def is_auditable(record: RewardRecord, by: AuditBy) -> bool:
    """Return True if the auditor audits such replies for a correction: the judge those that the reranker alone decided,
    any other auditor all that Eq. 4 rewarded."""
    return record.band == "inside" if by == "judge" else value_of(record) is not None


RewardRow = tuple[str, str, float, bool, float | None, float]
"""Of one reply: consistency or total, its prompt, its value as if not audited, whether it may be audited, its residual,
and the weight of the consistency in the value."""


def reward_rows(record: RewardRecord, by: AuditBy) -> tuple[RewardRow, ...]:
    """Return the rows of one record for `DebiasedRewards`. Failures have none."""
    prompt = record.key.prompt
    part = next((c for c in record.components if c.name == "consistency" and c.value is not None), None)
    total = [record.total.value] if isinstance(record.total, Scored) else []
    if part is None or part.value is None:
        return tuple(("total", prompt, value, False, None, 0.0) for value in total)
    value = value_of(record) if is_auditable(record, by) else None
    known = value is not None
    moved = 0.0 if value is None else value - part.value
    mixed = None if value is None or record.audit is None else record.audit.mix
    residual = None if mixed is None else mixed - (part.value + moved)
    own = None if residual is None else part.weight * residual
    return (
        ("consistency", prompt, part.value + moved, known, residual, 1.0),
        *(("total", prompt, reward + part.weight * moved, known, own, part.weight) for reward in total),
    )


class DebiasedRewards:
    """Mean consistency and mean total reward as if every reply that may be audited had been, with intervals.

    The responses to one prompt are a cluster: their values and residuals are alike.
    """

    def __init__(self, rows: Iterable[RewardRow] = ()) -> None:
        self._means = {"consistency": DebiasedMean(), "total": DebiasedMean(limits=None)}
        self.add(rows)

    @classmethod
    def of(cls, records: Sequence[RewardRecord]) -> DebiasedRewards:
        """Return the means over records whose audits have one auditor."""
        by: AuditBy = next((r.audit.by for r in records if r.audit is not None), "judge")
        return cls(row for record in records for row in reward_rows(record, by))

    def add(self, rows: Iterable[RewardRow]) -> None:
        """Add the rows of one or more records."""
        for name, prompt, value, auditable, residual, weight in rows:
            self._means[name].add(value, auditable=auditable, residual=residual, cluster=prompt, weight=weight)

    def estimates(self) -> dict[str, dict[str, float]]:
        """Return `DebiasedMean.estimate` of `consistency` and `total`, without those of too few audits."""
        return {name: figures for name, mean in self._means.items() if (figures := mean.estimate())}


def debiased_metrics(found: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the estimates of `DebiasedRewards` as flat metrics."""
    return {f"{name}_debiased/{key}": value for name, figures in found.items() for key, value in figures.items()}


@dataclass(frozen=True, kw_only=True)
class _Reply:
    """One reply of the cascade. `gap` is the distance of its reward from the auditor's score, None if unknown.
    `hidden`: only an audit tells it."""

    gap: float | None
    hidden: bool

    @classmethod
    def of(cls, record: RewardRecord, by: AuditBy, best_k: int | None) -> _Reply | None:
        reward = value_of(record)
        if reward is None:
            return None
        scores = {score.reference: score.s_j for score in record.reference_scores}
        known = [s_j for s_j in scores.values() if s_j is not None]
        hidden = by != "judge" or any(scores[i] is None for i in best_references(record.reference_scores, best_k))
        best = (record.audit.best if record.audit is not None else None) if hidden else max(known)
        return cls(gap=None if best is None else abs(reward - best), hidden=hidden)


class AuditWindow:
    """Running metrics over the last replies of a run."""

    def __init__(
        self, by: AuditBy = "judge", best_k: int | None = None, *, replies: int = REPLIES, audits: int = AUDITS
    ) -> None:
        """`best_k`: the references of a reply that count are those with the highest reranker scores (None: all)."""
        self._by, self._best_k = by, best_k
        self._rewards: deque[tuple[RewardRow, ...]] = deque(maxlen=replies)
        self._replies: deque[_Reply] = deque(maxlen=replies)
        self._audits: deque[tuple[float, float]] = deque(maxlen=audits)

    def add(self, records: Iterable[RewardRecord]) -> dict[str, float]:
        """Add the records of a step and return `audit/*`.

        answered, failed: audits of this step. gap: the estimate above, assuming that failed audits are like the others.
        Of the audited replies whose reward the reranker alone decided, inside_gap: mean S_R - S_J (above 0: the
        reranker is more lenient). disagree_frac: share whose S_J lies on the other side of one half. drift: difference
        between the inside gaps of the newer and the older half of the audits, in standard errors. A metric without data
        is omitted. consistency_debiased, total_debiased: mean rewards over all replies of the window as if all had been
        audited (`DebiasedRewards`).
        """
        answered = failed = 0
        for record in records:
            self._rewards.append(reward_rows(record, self._by))
            reply, audit = _Reply.of(record, self._by, self._best_k), record.audit
            if reply is not None:
                self._replies.append(reply)
            if audit is not None:
                answered += audit.best is not None
                failed += audit.best is None
                if record.band == "inside" and audit.s_j is not None:
                    self._audits.append((audit.s_r, audit.s_j))
        found = DebiasedRewards(row for rows in self._rewards for row in rows).estimates()
        debiased = {f"audit/{name}": value for name, value in debiased_metrics(found).items()}
        counts = {"audit/answered": float(answered), "audit/failed": float(failed)}
        return {**counts, **self._gap(), **self._inside(), **debiased}

    def _gap(self) -> dict[str, float]:
        judged = [r.gap for r in self._replies if not r.hidden and r.gap is not None]
        audited = [r.gap for r in self._replies if r.hidden and r.gap is not None]
        hidden = sum(r.hidden for r in self._replies)
        if not self._replies or (hidden and not audited):
            return {}
        in_hiding = hidden * fmean(audited) if hidden else 0.0
        return {"audit/gap": (math.fsum(judged) + in_hiding) / len(self._replies)}

    def _inside(self) -> dict[str, float]:
        if not self._audits:
            return {}
        gaps = [s_r - s_j for s_r, s_j in self._audits]
        other_side = [(s_r >= 0.5) != (s_j >= 0.5) for s_r, s_j in self._audits]
        figures = {"audit/inside_gap": fmean(gaps), "audit/disagree_frac": sum(other_side) / len(other_side)}
        moved = drift(gaps)
        return figures if moved is None else {**figures, "audit/drift": moved}


def drift(gaps: Sequence[float]) -> float | None:
    """Return Welch's t of the newer half against the older. None if a half has fewer than FEWEST or nothing varies.

    >>> drift([0.0, 0.1] * 20 + [0.5, 0.6] * 20) > 10
    True
    """
    middle = len(gaps) // 2
    older, newer = gaps[:middle], gaps[middle:]
    if len(older) < FEWEST:
        return None
    error = math.sqrt(variance(older) / len(older) + variance(newer) / len(newer))
    return (fmean(newer) - fmean(older)) / error if error > 0.0 else None
