"""Whom the judge may skip: the responses of a group about whom its word could change nothing that matters.

A response that Eq. 4 wants judged has, before the judge has spoken, an interval for its total reward: with weight c of
the consistency reward and the sum s of all other components,

    s + c [ max_j low_j, max_j high_j ],   low_j, high_j = w S_R + (1 - w) S_J  at S_J = 0 and S_J = 1,

j over its references (a reference inside the trust interval is the point S_R; the scores of several references are free
of each other, so that every value in between can come about). All others are points. Let t be the totals if everybody
is judged, and t' those if the responses of a set X are not and get the middle of their interval, the value whose
largest error is smallest. X may be skipped if for all S_J of all unknowns

    order   t_i - t_k >  tolerance  implies  t'_i > t'_k, and the same with t and t' exchanged, for every pair;
    signal  max t - min t > equal_within  if and only if  max t' - min t' > equal_within.

So no two responses whose totals differ by more than `tolerance` change places, nor do two that were told apart fall
together, and dynamic sampling keeps and drops the same groups. What is *not* kept are distances: a skipped reward may
be off by half its interval, and advantages with it. X is grown greedily, narrow intervals first; the tests below decide
pairs exactly and `signal` on the safe side. A judge that fails takes its response out of the group; the rules hold for
those that are left, since only points and the skipped are called on to prove that a group is kept.

Under the paper's weights this skips little: w1 = 0.05 leaves 0.95 of the score to the judge, and such an interval
overlaps everything else (`benchmarks/reward_time.py` has figures). It skips the only reply among siblings that took the
wrong kind of action; and with `tolerance` >= (1 - w2) c = 0.28 everything above the interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hamr.calibration.cascade import Cascade
from hamr.cascade.consistency import to_judge
from hamr.config.schema import ConsistencyConfig
from hamr.types import ReferenceScore, Scored


@dataclass(frozen=True, kw_only=True)
class Span:
    """Where a response's total will lie. `open`: the judge is wanted, and may be skipped. A response of which
    too little is known (a reranker that failed) has a wide span that is not open."""

    low: float
    high: float
    open: bool = False

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2.0

    @property
    def known(self) -> bool:
        return not self.open and self.low == self.high


def value_span(scores: Sequence[ReferenceScore], config: ConsistencyConfig) -> tuple[float, float]:
    """Lowest and highest consistency reward of a reply, whatever the judge says. Every reference has its S_R.

    References that `judge_best_k` spares the judge have no part in it.

    >>> value_span([ReferenceScore(reference=0, s_r=1.0)], ConsistencyConfig())
    (0.72, 1.0)
    """
    cascade = Cascade.from_config(config.cascade)
    judged = to_judge(scores, config)
    lows, highs = [], []
    for score in scores:
        assert score.s_r is not None, "the reranker has spoken about every reference"
        if not cascade.needs_judge(score.s_r) or score.reference in judged:
            lows.append(cascade.mix(score.s_r, 0.0))
            highs.append(cascade.mix(score.s_r, 1.0))
    return max(lows), max(highs)


def score_without_judge(scores: Sequence[ReferenceScore], config: ConsistencyConfig) -> Scored:
    """The consistency reward of a reply that the judge skipped: the middle of its interval."""
    low, high = value_span(scores, config)
    return Scored(value=(low + high) / 2.0)


def skippable(spans: Sequence[Span], *, tolerance: float, equal_within: float) -> frozenset[int]:
    """Positions of the open spans that need no judge, by the rules above; none in a group of fewer than two."""
    if len(spans) < 2:
        return frozenset()
    chosen: set[int] = set()
    wanted = [i for i, span in enumerate(spans) if span.open]
    for i in sorted(wanted, key=lambda i: (spans[i].high - spans[i].low, i)):
        pairs = ((k, other) for k, other in enumerate(spans) if k != i)
        kept = all(
            _both_skipped(spans[i], other, tolerance) if k in chosen else _beside_judged(spans[i], other, tolerance)
            for k, other in pairs
        )
        if kept and _same_signal(spans, chosen | {i}, equal_within):
            chosen.add(i)
    return frozenset(chosen)


def _beside_judged(skipped: Span, other: Span, tolerance: float) -> bool:
    """`order` for a skipped response and one whose total p in [low, high] is the same in both worlds."""
    middle = skipped.middle
    # Above p by more than the tolerance in truth, not above it at the middle; and the mirror image.
    nearest_above, nearest_below = max(middle, other.low), min(middle, other.high)
    if nearest_above <= other.high and skipped.high - nearest_above > tolerance:
        return False
    if nearest_below >= other.low and nearest_below - skipped.low > tolerance:
        return False
    # Above p by more than the tolerance at the middle, not above it in truth; and the mirror image.
    lowest, highest = max(other.low, skipped.low), min(other.high, skipped.high)
    if lowest <= other.high and middle - lowest > tolerance:
        return False
    return not (highest >= other.low and highest - middle > tolerance)


def _both_skipped(one: Span, other: Span, tolerance: float) -> bool:
    """`order` for two skipped responses, whose true totals are free of each other."""
    low, high = sorted((one, other), key=lambda span: span.middle)
    if low.high - high.low > tolerance:
        return False
    if low.middle == high.middle:
        return high.high - low.low <= tolerance
    return high.middle - low.middle <= tolerance or high.low > low.high


def _same_signal(spans: Sequence[Span], skipped: set[int], equal_within: float) -> bool:
    """Whether dynamic sampling's test surely ends alike in both worlds."""
    if max(span.high for span in spans) - min(span.low for span in spans) <= equal_within:
        return True  # dropped in both
    there = [span for i, span in enumerate(spans) if i in skipped or span.known]
    if max(span.low for span in there) - min(span.high for span in there) > equal_within:
        return True  # kept in both
    points = [span.low for span in spans if span.known]
    if not points:
        return False
    # Nobody who is skipped can be the highest or the lowest: both worlds have the same range.
    return all(min(points) <= spans[i].low and spans[i].high <= max(points) for i in skipped)
