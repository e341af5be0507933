"""Consistency scorer of one reply: sends the questions for all references concurrently and combines the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from hamr.calibration.cascade import Cascade
from hamr.cascade.cached_pool import CachedPool, ScorerRole, failure_of
from hamr.cascade.consistency import Consistency, best_references, combine, to_judge
from hamr.cascade.metrics import RouterMetrics
from hamr.cascade.retry import ask_until
from hamr.config.rewards import ConsistencyConfig
from hamr.rewards.questions import consistency_question
from hamr.rewards.verdict import canonical_label, parse_dimensions
from hamr.types import (
    Answer,
    Audit,
    Failure,
    JudgeUnparsable,
    Question,
    ReferenceScore,
    Reply,
    ScorerCall,
    ServiceSample,
)


class ConsistencyScorer:
    """Questions about one reply and the answers so far. Single use."""

    def __init__(
        self,
        config: ConsistencyConfig,
        pools: Mapping[ScorerRole, CachedPool],
        metrics: RouterMetrics,
        sample: ServiceSample,
        reply: Reply,
        *,
        until: float,
        ensemble: Sequence[CachedPool] = (),
    ) -> None:
        """`ensemble`: pools that answer audits in place of the judge."""
        self._config, self._pools, self._metrics = config, pools, metrics
        self._ensemble = ensemble
        self._sample, self._reply, self._until = sample, reply, until
        self._scores: dict[int, ReferenceScore] = {}
        self._failures: dict[int, Failure] = {}
        self._calls: list[tuple[int, ScorerRole, ScorerCall]] = []
        self._questions: dict[int, Question] = {}

    async def run(self, references: Sequence[int], *, audited: bool = False) -> Consistency:
        """Score the reply against the references with these indices (at least one) and take the maximum.

        Args:
            references: Indices of the references.
            audited: Also score the references of an audit that the judge did not score, for the record.
        """
        self._scores = {index: ReferenceScore(reference=index) for index in references}
        if self._config.mode == "hybrid" and self._config.judge_best_k is None:
            await _together([self._rerank_then_judge(index) for index in references])
        else:
            if self._config.mode in ("hybrid", "reranker"):
                await _together([self._rerank(index) for index in references])
            judged = to_judge(tuple(self._scores.values()), self._config)
            await _together([self._judge(index) for index in judged])
        scores = tuple(self._scores.values())
        result = combine(scores, self._config, self._failures)
        rewarded = result.outcome.ok and result.fallback is None
        audit = await self._audit(scores, result.decisive) if audited and rewarded else None
        calls = tuple(call for _, _, call in sorted(self._calls, key=_order))
        return replace(result, scores=scores, calls=calls, audit=audit)

    async def _rerank_then_judge(self, index: int) -> None:
        await self._rerank(index)
        # References are independent: the judge starts while the reranker still scores the others.
        if to_judge((self._scores[index],), self._config):
            await self._judge(index)

    async def _rerank(self, index: int) -> None:
        answer = await self._ask("reranker", index)
        failure = failure_of("reranker", answer)
        if failure is not None:
            self._failures[index] = failure
            return
        self._scores[index] = replace(self._scores[index], s_r=answer.score)

    async def _judge(self, index: int) -> None:
        answer = await self._ask_judge(index)
        failure = self._judge_failure(answer)
        if failure is not None:
            self._failures[index] = failure
            return
        s_j = answer.score if failure_of("judge", answer) is None else None
        label = canonical_label(answer.verdict) if answer.verdict is not None else None
        dimensions = parse_dimensions(answer.reasoning)
        self._scores[index] = replace(self._scores[index], s_j=s_j, verdict=label, dimensions=dimensions)

    def _judge_failure(self, answer: Answer) -> Failure | None:
        """Return the failure if the judge's answer has no score that the mode needs, else None."""
        if self._config.mode == "hard_judge" and answer.failure is None:
            # Only the verdict counts here. Endpoints without log-probabilities have no soft score.
            known = answer.verdict is not None and canonical_label(answer.verdict) is not None
            return None if known else JudgeUnparsable(detail=f"verdict={answer.verdict!r} is not a level")
        return failure_of("judge", answer)

    async def _audit(self, scores: Sequence[ReferenceScore], decisive: ReferenceScore | None) -> Audit | None:
        """Return the judge scores of the decisive reference and of the best ones (`judge_best_k`). None if the judge
        has scored all of these. An ensemble scores each of them."""
        if self._config.mode != "hybrid":
            return None
        assert decisive is not None and decisive.s_r is not None, "a reply with a reward was reranked"
        judged = {} if self._ensemble else {s.reference: s.s_j for s in scores if s.s_j is not None}
        asked = sorted({decisive.reference, *best_references(scores, self._config.judge_best_k)} - judged.keys())
        if not asked:
            return None
        votes = await asyncio.gather(*map(self._vote, asked))
        judged |= {index: vote for index, vote in zip(asked, votes, strict=True) if not isinstance(vote, Failure)}
        audit = Audit(s_r=decisive.s_r, s_j=judged.get(decisive.reference), by=self._config.audit.by)
        failure = next((vote for vote in votes if isinstance(vote, Failure)), None)
        if failure is not None:
            return replace(audit, failure=failure.kind)
        best = max(judged.values())
        if self._ensemble:
            return replace(audit, best=best, mix=best)
        cascade, s_r = Cascade.from_config(self._config.cascade), {s.reference: s.s_r for s in scores}
        mixes = [cascade.audited_mix(own, s_j) for index, s_j in judged.items() if (own := s_r[index]) is not None]
        return replace(audit, best=best, mix=max(mixes))

    async def _vote(self, index: int) -> float | Failure:
        """Return the mean score of the auditing pools for a reference, or the first failure."""
        pools = self._ensemble or (self._pools["judge"],)
        answers = await asyncio.gather(*(self._ask_judge(index, pool, patient=False) for pool in pools))
        failures = [failure for answer in answers if (failure := failure_of("judge", answer)) is not None]
        return failures[0] if failures else fmean(answer.score or 0.0 for answer in answers)

    async def _ask_judge(self, index: int, pool: CachedPool | None = None, *, patient: bool = True) -> Answer:
        """Ask the judge, or another pool. Retry with another sample of its reasoning while the answer is
        unparseable."""
        answer = await self._ask("judge", index, pool, patient=patient)
        for attempt in range(1, 1 + self._config.max_reasks):
            if not isinstance(self._judge_failure(answer), JudgeUnparsable):
                break
            answer = await self._ask("judge", index, pool, patient=patient, attempt=attempt)
        return answer

    async def _ask(
        self, role: ScorerRole, index: int, pool: CachedPool | None = None, *, patient: bool = True, attempt: int = 0
    ) -> Answer:
        """Send one question. `patient`: the reward depends on it, so `fallback: wait` applies. False for audits.

        `pool` replaces the one of the role; its questions are counted with the side rewards'.
        """
        if index not in self._questions:
            reference = self._sample.references[index].action
            assert isinstance(reference, Reply), "only reply references reach the scorers"
            self._questions[index] = consistency_question(self._sample, reference, self._reply)
        question = replace(self._questions[index], attempt=attempt) if attempt else self._questions[index]
        patient = patient and self._config.fallback == "wait"
        ask = ask_until if patient else CachedPool.ask
        reply = await ask(pool or self._pools[role], question, until=self._until)
        if reply.answer.call is not None:
            self._calls.append((index, role, reply.answer.call))
        self._metrics.question("side" if pool in self._ensemble else role, reply, again=attempt > 0)
        return reply.answer


async def _together(asked: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Await all concurrently. A single coroutine is awaited without a task, to avoid the overhead."""
    if len(asked) == 1:
        await asked[0]
    else:
        await asyncio.gather(*asked)


def _order(item: tuple[int, ScorerRole, ScorerCall]) -> tuple[int, bool]:
    """Sort by reference, then reranker before judge, then attempt. Independent of the arrival order."""
    reference, role, _ = item
    return reference, role == "judge"
