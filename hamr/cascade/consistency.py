"""Combine the scores of one reply against each reference into one outcome.

Pure functions. The router and the replay of a ledger both use them, so a recorded reward is reproduced exactly.

One reply may have several reference replies. The paper rewards against one. Like its evaluation metric (Eq. 1), hamr
takes the maximum over the references: the best agreement with any acceptable reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hamr.calibration.cascade import Cascade
from hamr.config.rewards import ConsistencyConfig
from hamr.errors import MissingScore
from hamr.rewards.verdict import hard_score
from hamr.types import (
    Audit,
    Band,
    Failure,
    Fallback,
    JudgeTimeout,
    JudgeUnavailable,
    Outcome,
    ReferenceScore,
    Scored,
    ScorerCall,
)

AWAY = (JudgeTimeout, JudgeUnavailable)
"""Failures of the judge that are independent of the response."""


@dataclass(frozen=True, kw_only=True)
class Consistency:
    """Consistency component of one response, with its scores and calls.

    `decisive`: the reference with the maximum, or the one whose failure could not be ignored. `fallback`: the failure
    of an unavailable judge affected the outcome, so the reranker score replaced it.
    """

    outcome: Outcome
    band: Band = "none"
    decisive: ReferenceScore | None = None
    fallback: Fallback | None = None
    scores: tuple[ReferenceScore, ...] = ()
    calls: tuple[ScorerCall, ...] = ()
    audit: Audit | None = None


def to_judge(scores: Sequence[ReferenceScore], config: ConsistencyConfig) -> tuple[int, ...]:
    """Return the indices of the references that the judge must score, given the reranker scores.

    `hybrid`: those outside the trust interval, limited to the `judge_best_k` with the highest reranker scores (the
    earlier reference on a tie). The judge-only modes: all. `reranker`: none.
    """
    if config.mode == "reranker":
        return ()
    if config.mode != "hybrid":
        return tuple(score.reference for score in scores)
    cascade = Cascade.from_config(config.cascade)
    outside = [score for score in scores if score.s_r is not None and cascade.needs_judge(score.s_r)]
    return best_references(outside, config.judge_best_k)


def best_references(scores: Sequence[ReferenceScore], most: int | None) -> tuple[int, ...]:
    """Return the indices of at most so many references with the highest reranker scores, in their order."""
    known = [(s.s_r, s.reference) for s in scores if s.s_r is not None]
    best = sorted(known, key=lambda pair: (-pair[0], pair[1]))[:most]
    return tuple(sorted(reference for _, reference in best))


def combine(
    scores: Sequence[ReferenceScore], config: ConsistencyConfig, failures: Mapping[int, Failure]
) -> Consistency:
    """Apply the cascade to each reference, then take the maximum over the references.

    If a scorer failed for a reference (`failures`: index -> failure), the maximum over the others is still exact if it
    reaches the highest possible value of the failed one. Otherwise the outcome is the first such failure in the order
    of the references. References outside the interval that `judge_best_k` excludes have no R and are ignored.

    With `fallback: reranker`, a failure is replaced by a number if the judge was unavailable or timed out and S_R is
    known: R = S_R for each such reference, as in Eq. 4 with a trust interval of [0, 1]. It is not w S_R, which is Eq. 4
    with a judge score of 0; a failure is never 0. An unparseable judge answer stays a failure: otherwise a policy could
    learn to write text that breaks the judge and be rewarded for it.

    Raises:
        MissingScore: A required score is absent and no failure explains it.
        ValueError: There are no scores.
    """
    if not scores:
        raise ValueError("no reference was scored")
    result = _combine(scores, config, failures, stand_in=False)
    if isinstance(result.outcome, Failure) and config.fallback == "reranker" and config.mode == "hybrid":
        again = _combine(scores, config, failures, stand_in=True)
        return again if isinstance(again.outcome, Failure) else replace(again, fallback="reranker")
    return result


def _combine(
    scores: Sequence[ReferenceScore], config: ConsistencyConfig, failures: Mapping[int, Failure], *, stand_in: bool
) -> Consistency:
    cascade = Cascade.from_config(config.cascade)
    judged = to_judge(scores, config)
    best: tuple[float, ReferenceScore] | None = None
    open_scores: list[tuple[float, ReferenceScore]] = []
    for score in scores:
        value, most = _value(score, config, cascade)
        missed = value is None and score.reference in judged and isinstance(failures.get(score.reference), AWAY)
        if stand_in and missed:
            value = score.s_r
        if value is not None:
            best = (value, score) if best is None or value > best[0] else best
        elif score.s_r is None or config.mode != "hybrid" or score.reference in judged:
            open_scores.append((most, score))
    for most, score in open_scores:
        if best is None or most > best[0]:
            failure = failures.get(score.reference)
            if failure is None:
                raise MissingScore(
                    f"reference {score.reference} lacks a score that mode={config.mode!r} needs: {score}"
                )
            return Consistency(outcome=failure, band=_band(score, config, cascade), decisive=score)
    assert best is not None, "each reference is scored, open, or excluded next to a judged one"
    return Consistency(outcome=Scored(value=best[0]), band=_band(best[1], config, cascade), decisive=best[1])


def _value(score: ReferenceScore, config: ConsistencyConfig, cascade: Cascade) -> tuple[float | None, float]:
    """Return (R of one reference or None, highest possible R)."""
    if config.mode == "reranker":
        return score.s_r, 1.0
    if config.mode == "soft_judge":
        return score.s_j, 1.0
    if config.mode == "hard_judge":
        return (hard_score(score.verdict, config.hard_part) if score.verdict is not None else None), 1.0
    if score.s_r is None:
        return None, 1.0
    if score.s_j is None and cascade.needs_judge(score.s_r):
        return None, cascade.highest(score.s_r)
    return cascade.mix(score.s_r, score.s_j), cascade.highest(score.s_r)


def _band(score: ReferenceScore, config: ConsistencyConfig, cascade: Cascade) -> Band:
    if config.mode == "reranker":
        return "reranker_only"
    if config.mode != "hybrid":
        return "judge_only"
    return cascade.band(score.s_r) if score.s_r is not None else "none"
