"""What the scorers say about one reply: the questions, all references at once, and the finding."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hamr.config.schema import ConsistencyConfig
from hamr.rewards.questions import consistency_question
from hamr.rewards.verdict import canonical_label
from hamr.routing.asking import Asker, Role, failure_of
from hamr.routing.consistency import combine, to_judge
from hamr.routing.gathering import Gate
from hamr.routing.group_aware import unjudged
from hamr.routing.metrics import RouterMetrics
from hamr.routing.patience import ask_until
from hamr.types import (
    Answer,
    Audit,
    Band,
    Failure,
    Fallback,
    JudgeUnparsable,
    Outcome,
    Question,
    ReferenceScore,
    Reply,
    ScorerCall,
    ServiceSample,
)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The consistency component of one response, and how it came about. `escalated`: the judge was asked."""

    outcome: Outcome
    band: Band = "none"
    scores: tuple[ReferenceScore, ...] = ()
    calls: tuple[ScorerCall, ...] = ()
    decisive: ReferenceScore | None = None
    escalated: bool = False
    audit: Audit | None = None
    fallback: Fallback | None = None


class Inquiry:
    """The questions about one reply, and what has come back so far. Used once."""

    def __init__(
        self,
        config: ConsistencyConfig,
        askers: Mapping[Role, Asker],
        metrics: RouterMetrics,
        sample: ServiceSample,
        reply: Reply,
        *,
        until: float,
    ) -> None:
        self._config, self._askers, self._metrics = config, askers, metrics
        self._sample, self._reply, self._until = sample, reply, until
        self._scores: dict[int, ReferenceScore] = {}
        self._failures: dict[int, Failure] = {}
        self._calls: dict[tuple[int, Role], ScorerCall] = {}
        self._questions: dict[int, Question] = {}
        self._escalated = False

    async def run(self, references: Sequence[int], *, audited: bool = False, gate: Gate | None = None) -> Finding:
        """Asks about the reply references with these indices (at least one) and takes the best.

        `audited`: where the reranker alone decides, the judge is heard too, for the record. `gate`: the group has a say
        in whether the judge is asked.
        """
        self._scores = {index: ReferenceScore(reference=index) for index in references}
        if self._config.mode == "hybrid" and self._config.judge_best_k is None and gate is None:
            await _together([self._rerank_then_judge(index) for index in references])
        else:
            if self._config.mode in ("hybrid", "reranker"):
                await _together([self._rerank(index) for index in references])
            reranked = tuple(self._scores.values())
            if gate is not None and await gate.spared(reranked, self._config):
                return self._skipped(reranked)
            judged = to_judge(reranked, self._config)
            await _together([self._judge(index) for index in judged])
        scores = tuple(self._scores.values())
        result = combine(scores, self._config, self._failures)
        audit = await self._audit(result.decisive) if audited and result.band == "inside" else None
        return Finding(
            outcome=result.outcome,
            band=result.band,
            scores=scores,
            calls=self._made(),
            decisive=result.decisive,
            escalated=self._escalated,
            audit=audit,
            fallback=result.fallback,
        )

    def _skipped(self, reranked: tuple[ReferenceScore, ...]) -> Finding:
        best = max(reranked, key=lambda score: score.s_r if score.s_r is not None else -1.0)
        outcome = unjudged(reranked, self._config)
        return Finding(outcome=outcome, band="skipped", scores=reranked, calls=self._made(), decisive=best)

    def _made(self) -> tuple[ScorerCall, ...]:
        return tuple(call for _, call in sorted(self._calls.items(), key=_order))

    async def _rerank_then_judge(self, index: int) -> None:
        await self._rerank(index)
        # A reference on its own: the judge starts while the reranker still reads the others.
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
        self._escalated = True
        answer = await self._ask("judge", index)
        label = canonical_label(answer.verdict) if answer.verdict is not None else None
        failure = failure_of("judge", answer)
        if self._config.mode == "hard_judge" and answer.failure is None:
            # Only the verdict counts here; endpoints without log-probabilities have no soft score.
            unread = JudgeUnparsable(detail=f"verdict={answer.verdict!r} is not a level")
            failure = unread if label is None else None
        if failure is not None:
            self._failures[index] = failure
            return
        s_j = answer.score if failure_of("judge", answer) is None else None
        self._scores[index] = replace(self._scores[index], s_j=s_j, verdict=label)

    async def _audit(self, decisive: ReferenceScore) -> Audit:
        assert decisive.s_r is not None, "inside the interval is where the reranker's score lies"
        answer = await self._ask("judge", decisive.reference, patient=False)
        heard = failure_of("judge", answer) is None
        return Audit(s_r=decisive.s_r, s_j=answer.score if heard else None)

    async def _ask(self, role: Role, index: int, *, patient: bool = True) -> Answer:
        """`patient`: the reward depends on it, so that `fallback: wait` waits for it; nobody waits for an audit."""
        if index not in self._questions:
            reference = self._sample.references[index].action
            assert isinstance(reference, Reply), "only reply references reach the scorers"
            self._questions[index] = consistency_question(self._sample, reference, self._reply)
        patient = patient and self._config.fallback == "wait"
        ask = ask_until if patient else Asker.ask
        heard = await ask(self._askers[role], self._questions[index], until=self._until)
        if heard.answer.call is not None:
            self._calls[index, role] = heard.answer.call
        if heard.answer.retry_in_s is None:  # a refused question was put to nobody
            self._metrics.question(role, asked=heard.asked, call=heard.answer.call)
        return heard.answer


async def _together(asked: Sequence[Coroutine[Any, Any, None]]) -> None:
    """All at once; a single one without a task of its own, which would cost as much as all else that is done for it."""
    if len(asked) == 1:
        await asked[0]
    else:
        await asyncio.gather(*asked)


def _order(item: tuple[tuple[int, Role], ScorerCall]) -> tuple[int, bool]:
    """By reference, the reranker before the judge: the order in which they are asked, whoever answers first."""
    (reference, role), _ = item
    return reference, role == "judge"
