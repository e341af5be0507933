"""Auditing the fast pass: some replies that the reranker alone decided are put to the judge all the same.

Where the judge is not asked, nobody knows what it would have said. A share f of those replies, drawn by their keys, is
asked about; each stands for 1 / f of its kind (Horvitz and Thompson 1952), so that over all replies of the cascade

    agreement gap = 1 / N * ( sum over judged replies |R - S_J| + 1 / f * sum over audited replies |S_R - S_J| )

estimates without bias how far the reward is from what a judge for everybody would have given.
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


def drawn(key: SampleKey, frac: float) -> bool:
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
    """One reply of the cascade. `gap` is its reward's distance from the judge, None where nobody asked the judge.
    `weight`: how many replies it stands for."""

    gap: float | None
    weight: float


class AuditWindow:
    """Running figures over the last replies of a run. `frac` is the share that is audited, > 0."""

    def __init__(self, frac: float, *, replies: int = REPLIES, audits: int = AUDITS) -> None:
        self._frac = frac
        self._replies: deque[_Reply] = deque(maxlen=replies)
        self._audits: deque[tuple[float, float]] = deque(maxlen=audits)

    def add(self, records: Iterable[RewardRecord]) -> dict[str, float]:
        """Takes a step's records in and gives `audit/*`:

        answered, failed: audits of this step. gap: the estimate above; an audit whose judge failed is missing from it.
        inside_gap: mean S_R - S_J of the audited (above 0 the reranker is the kinder one). disagree_frac: share of the
        audited whose S_J lies on the other side of one half. drift: standard errors between the inside gaps of the
        newer half of the audits and of the older. A figure that has nothing to stand on is left out.
        """
        answered = failed = 0
        for record in records:
            audit = record.audit
            if audit is not None and audit.s_j is not None:
                answered += 1
                self._audits.append((audit.s_r, audit.s_j))
                self._replies.append(_Reply(gap=abs(audit.s_r - audit.s_j), weight=1.0 / self._frac))
            elif record.band == "inside":
                failed += audit is not None
                self._replies.append(_Reply(gap=None, weight=0.0))
            elif record.band in ("below", "above") and record.s_j is not None:
                reward = next(c.value for c in record.components if c.name == "consistency")
                if reward is not None:
                    self._replies.append(_Reply(gap=abs(reward - record.s_j), weight=1.0))
        return {"audit/answered": float(answered), "audit/failed": float(failed), **self._figures()}

    def _figures(self) -> dict[str, float]:
        if not self._audits:
            return {}
        gaps = [s_r - s_j for s_r, s_j in self._audits]
        other_side = [(s_r >= 0.5) != (s_j >= 0.5) for s_r, s_j in self._audits]
        figures = {
            "audit/gap": math.fsum(r.weight * r.gap for r in self._replies if r.gap is not None) / len(self._replies),
            "audit/inside_gap": fmean(gaps),
            "audit/disagree_frac": sum(other_side) / len(other_side),
        }
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
