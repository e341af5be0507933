"""Window of the reranker scores of a run's replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hamr.calibration.ranks import Floats
from hamr.types import CASCADE_BANDS, RewardRecord


@dataclass(frozen=True, kw_only=True)
class WindowReply:
    """Lowest and highest S_R of one reply over its references. They determine for every interval whether the judge is
    called."""

    low: float
    high: float

    @classmethod
    def of(cls, record: RewardRecord) -> WindowReply | None:
        """Return None if the cascade was not used for the reward, or the reranker failed."""
        scores = [s.s_r for s in record.reference_scores]
        known = [s_r for s_r in scores if s_r is not None]
        if record.band not in CASCADE_BANDS or record.s_r is None or len(known) < len(scores):
            return None
        return cls(low=min([record.s_r, *known]), high=max([record.s_r, *known]))


@dataclass(frozen=True, eq=False)
class ReplyWindow:
    """Window as columns of equal length."""

    low: Floats
    high: Floats

    @classmethod
    def of(cls, rows: Sequence[WindowReply]) -> ReplyWindow:
        """Return the window of these replies."""
        return cls(low=np.array([row.low for row in rows]), high=np.array([row.high for row in rows]))

    def escalated_share(self, tau_a: Floats, tau_b: Floats) -> Floats:
        """Return the share of the replies with a reference outside [tau_a[i], tau_b[i]], for every i."""
        n = self.low.size
        below = np.searchsorted(np.sort(self.low), tau_a)
        above = n - np.searchsorted(np.sort(self.high), tau_b, "right")
        if np.array_equal(self.low, self.high):
            return (below + above) / n
        # A reply with several references may have one below and one above; it counts once.
        both = (self.low < tau_a[:, None]) & (self.high > tau_b[:, None])
        return (below + above - both.sum(axis=1)) / n
