"""From what the scorers said of one reply against each reference to one outcome. Pure; the router and the
replay of a ledger both call it, so a recorded reward comes out the same again.

One reply may have several reference replies. The paper rewards against one; like its evaluation metric (Eq. 1),
hamr takes the maximum over the references: a reply is as good as its best agreement with something acceptable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hamr.calibration.cascade import Cascade
from hamr.config.schema import ConsistencyConfig
from hamr.errors import MissingScore
from hamr.rewards.verdict import hard_score
from hamr.types import Band, Failure, Fallback, JudgeTimeout, JudgeUnavailable, Outcome, ReferenceScore, Scored

AWAY = (JudgeTimeout, JudgeUnavailable)
"""Failures that say nothing about the response, only about the judge."""


@dataclass(frozen=True, kw_only=True)
class Consistency:
    """The outcome, and the reference that decided it: the winner, or the one whose failure could not be ignored.
    `fallback`: a judge that was away mattered for the outcome, and the reranker stood in for it."""

    outcome: Outcome
    band: Band
    decisive: ReferenceScore
    fallback: Fallback | None = None


def to_judge(scores: Sequence[ReferenceScore], config: ConsistencyConfig) -> tuple[int, ...]:
    """The references (their indices) that the judge has to speak about, given what the reranker said.

    `hybrid`: those outside the trust interval, and of these only the `judge_best_k` that the reranker likes best
    (earlier reference first on a tie). The judge-only modes: all. `reranker`: none.
    """
    if config.mode == "reranker":
        return ()
    if config.mode != "hybrid":
        return tuple(score.reference for score in scores)
    cascade = Cascade.from_config(config.cascade)
    outside = [(s.s_r, s.reference) for s in scores if s.s_r is not None and cascade.needs_judge(s.s_r)]
    best = sorted(outside, key=lambda pair: (-pair[0], pair[1]))[: config.judge_best_k]
    return tuple(sorted(reference for _, reference in best))


def combine(
    scores: Sequence[ReferenceScore], config: ConsistencyConfig, failures: Mapping[int, Failure]
) -> Consistency:
    """Each reference through the cascade, then the maximum over the references.

    Where a scorer failed for a reference (`failures`: index -> failure), the maximum over the others is still the
    true one if it reaches what the failed one could have had at most; otherwise the failure is the outcome, the
    first such in the order of the references. References outside the interval that `judge_best_k` spares the judge
    have no R and take no part.

    With `fallback: reranker`, a failure that would be the outcome is turned into a number where the judge was away
    (timed out or unavailable) and S_R is known: R = S_R for every such reference, as in Eq. 4 under a trust interval
    of [0, 1]. Not w S_R, which is Eq. 4 with the judge's 0, and a failure is never 0. A judge that was there and could
    not be read stays a failure: a policy could learn to write what no judge can read, and this would pay for it.

    Raises MissingScore if a needed score is absent and no failure explains it; ValueError for no scores at all.
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
    assert best is not None, "a reference is scored, open, or spared beside a judged one"
    return Consistency(outcome=Scored(value=best[0]), band=_band(best[1], config, cascade), decisive=best[1])


def _value(score: ReferenceScore, config: ConsistencyConfig, cascade: Cascade) -> tuple[float | None, float]:
    """(R of one reference or None, the most that R could be)."""
    if config.mode == "reranker":
        return score.s_r, 1.0
    if config.mode == "soft_judge":
        return score.s_j, 1.0
    if config.mode == "hard_judge":
        return (hard_score(score.verdict) if score.verdict is not None else None), 1.0
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
