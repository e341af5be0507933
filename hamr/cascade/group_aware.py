"""Group-aware judging: select the responses of a group for which the judge's score cannot change a relevant result.

A response that Eq. 4 sends to the judge has an interval for its total reward before the judge is called. With weight c
of the consistency reward and the sum s of all other components, the interval is

    s + c [ max_j low_j, max_j high_j ],   low_j, high_j = w S_R + (1 - w) S_J  at S_J = 0 and S_J = 1,

where j runs over its references. A reference inside the trust interval is the point S_R. The scores of the references
are independent, so every value in between is possible. All other responses are points. Let t be the totals if all are
judged. Let t' be the totals if the responses of a set X are not judged and get the middle of their interval, which
minimises the largest error. X may be skipped if for all S_J of all unknowns

    order   t_i - t_k >  tolerance  implies  t'_i > t'_k, and the same with t and t' exchanged, for every pair;
    signal  max t - min t > equal_within  if and only if  max t' - min t' > equal_within.

So two responses whose totals differ by more than `tolerance` keep their order and do not become equal, and dynamic
sampling keeps and drops the same groups. Distances are *not* preserved: a skipped reward can be off by half its
interval, and so can the advantages. X is grown greedily, narrow intervals first. The tests below are exact for pairs
and conservative for `signal`. A judge failure removes its response from the group. The rules still hold for the
remaining responses, since only points and skipped responses are used to prove that a group is kept.

With the weights of the paper few responses are skipped: w1 = 0.05 leaves 0.95 of the score to the judge, and such an
interval overlaps all others (see `benchmarks/reward_time.py` for measurements). The only reply among siblings that
chose the wrong kind of action is skipped. With `tolerance` >= (1 - w2) c = 0.28 everything above the interval is
skipped too.
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
    """Interval of the total of a response. `open`: the judge is selected and may be skipped. An unknown total (the
    reranker failed) is a wide span that is not open."""

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
    """Return the lowest and highest possible consistency reward of a reply over all judge scores. Every reference has
    its S_R.

    References that `judge_best_k` excludes are ignored.

    >>> value_span([ReferenceScore(reference=0, s_r=1.0)], ConsistencyConfig())
    (0.72, 1.0)
    """
    cascade = Cascade.from_config(config.cascade)
    judged = to_judge(scores, config)
    lows, highs = [], []
    for score in scores:
        assert score.s_r is not None, "the reranker has scored every reference"
        if not cascade.needs_judge(score.s_r) or score.reference in judged:
            lows.append(cascade.mix(score.s_r, 0.0))
            highs.append(cascade.mix(score.s_r, 1.0))
    return max(lows), max(highs)


def score_without_judge(scores: Sequence[ReferenceScore], config: ConsistencyConfig) -> Scored:
    """Return the consistency reward of a reply without its judge score: the middle of its interval."""
    low, high = value_span(scores, config)
    return Scored(value=(low + high) / 2.0)


def skippable(spans: Sequence[Span], *, tolerance: float, equal_within: float) -> frozenset[int]:
    """Return the positions of the open spans that need no judge, by the rules above. Empty for fewer than two spans."""
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
    """Check `order` for a skipped response and one whose total p in [low, high] is equal in t and t'."""
    middle = skipped.middle
    # True total above p by more than the tolerance, but middle not above it; and the mirror case.
    nearest_above, nearest_below = max(middle, other.low), min(middle, other.high)
    if nearest_above <= other.high and skipped.high - nearest_above > tolerance:
        return False
    if nearest_below >= other.low and nearest_below - skipped.low > tolerance:
        return False
    # Middle above p by more than the tolerance, but true total not above it; and the mirror case.
    lowest, highest = max(other.low, skipped.low), min(other.high, skipped.high)
    if lowest <= other.high and middle - lowest > tolerance:
        return False
    return not (highest >= other.low and highest - middle > tolerance)


def _both_skipped(one: Span, other: Span, tolerance: float) -> bool:
    """Check `order` for two skipped responses, whose true totals are independent."""
    low, high = sorted((one, other), key=lambda span: span.middle)
    if low.high - high.low > tolerance:
        return False
    if low.middle == high.middle:
        return high.high - low.low <= tolerance
    return high.middle - low.middle <= tolerance or high.low > low.high


def _same_signal(spans: Sequence[Span], skipped: set[int], equal_within: float) -> bool:
    """Return True if the test of dynamic sampling certainly has the same result for t and t'."""
    if max(span.high for span in spans) - min(span.low for span in spans) <= equal_within:
        return True  # dropped in both
    there = [span for i, span in enumerate(spans) if i in skipped or span.known]
    if max(span.low for span in there) - min(span.high for span in there) > equal_within:
        return True  # kept in both
    points = [span.low for span in spans if span.known]
    if not points:
        return False
    # No skipped response can be the highest or the lowest: t and t' have the same range.
    return all(min(points) <= spans[i].low and spans[i].high <= max(points) for i in skipped)
