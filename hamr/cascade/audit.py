"""Auditing the fast pass: some replies that the judge was not asked about, or not about all of their references, are
put to it all the same.

Where the judge is not asked, nobody knows what it would have said. Of these replies a share, drawn by hashes of their
keys alone, is asked about: a fair sample, whose mean stands for all of them. Over all N replies of the cascade, H of
them hidden in this way,

    agreement gap = 1 / N * ( sum over fully judged replies |R - J| + H * mean over audited replies |R - J| ),

where J is the highest S_J over a reply's references, estimates without bias how far the reward is from what a judge for
everybody would have given. (A sum over the audited divided by their share would be unbiased too, but varies more, and
sinks with every audit that fails.)
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from hamr.types import RewardRecord, SampleKey

REPLIES, AUDITS = 2000, 400
"""So many of the last replies and audits make the running figures."""
FEWEST = 20
"""Audits on either side of a comparison."""
_CASCADED = ("below", "inside", "above", "skipped")


def is_audited(key: SampleKey, frac: float) -> bool:
    """Whether this response is audited: a fair draw of `frac` that follows from its key alone.

    >>> drawn(SampleKey(run="r", step=1, prompt="p", sample=0), 0.0)
    False
    """
    if frac <= 0.0:
        return False
    text = f"audit/{key.run}/{key.step}/{key.prompt}/{key.sample}/{key.attempt}"
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") < frac * 2**64


@dataclass(frozen=True, kw_only=True)
class _Reply:
    """One reply of the cascade. `gap` is its reward's distance from the judge, None where that is not known. `hidden`:
    the judge was not asked about all of it."""

    gap: float | None
    hidden: bool

    @classmethod
    def of(cls, record: RewardRecord) -> _Reply | None:
        """None where Eq. 4 had no part in the reward, or gave none, or had to do without a judge that was away."""
        reward = next((c.value for c in record.components if c.name == "consistency"), None)
        if record.band not in _CASCADED or not record.reference_scores or record.fallback is not None or reward is None:
            return None
        judged = [score.s_j for score in record.reference_scores]
        known = [s_j for s_j in judged if s_j is not None]
        hidden = len(known) < len(judged)
        best = (record.audit.best if record.audit is not None else None) if hidden else max(known)
        return cls(gap=None if best is None else abs(reward - best), hidden=hidden)


class AuditWindow:
    """Running figures over the last replies of a run."""

    def __init__(self, *, replies: int = REPLIES, audits: int = AUDITS) -> None:
        self._replies: deque[_Reply] = deque(maxlen=replies)
        self._audits: deque[tuple[float, float]] = deque(maxlen=audits)

    def add(self, records: Iterable[RewardRecord]) -> dict[str, float]:
        """Takes a step's records in and gives `audit/*`:

        answered, failed: audits of this step. gap: the estimate above, as if those that failed were like the others.
        Of the audited whose reward the reranker alone decided, inside_gap: mean S_R - S_J (above 0 the reranker is the
        kinder one). disagree_frac: share whose S_J lies on the other side of one half. drift: standard errors between
        the inside gaps of the newer half of the audits and of the older. A figure that has nothing to stand on is left
        out.
        """
        answered = failed = 0
        for record in records:
            reply, audit = _Reply.of(record), record.audit
            if reply is not None:
                self._replies.append(reply)
            if audit is not None:
                answered += audit.best is not None
                failed += audit.best is None
                if record.band == "inside" and audit.s_j is not None:
                    self._audits.append((audit.s_r, audit.s_j))
        return {"audit/answered": float(answered), "audit/failed": float(failed), **self._gap(), **self._inside()}

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
    """Welch's t of the newer half against the older; None where a half has fewer than FEWEST or nothing varies.

    >>> drift([0.0, 0.1] * 20 + [0.5, 0.6] * 20) > 10
    True
    """
    middle = len(gaps) // 2
    older, newer = gaps[:middle], gaps[middle:]
    if len(older) < FEWEST:
        return None
    error = math.sqrt(variance(older) / len(older) + variance(newer) / len(newer))
    return (fmean(newer) - fmean(older)) / error if error > 0.0 else None
