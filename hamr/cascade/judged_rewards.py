"""Judged side rewards of a response: calls the judges, retries unparseable answers, and returns the components."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hamr.calibration.cascade import Cascade, confidence
from hamr.cascade.cached_pool import CachedPool, failure_of, written_failure
from hamr.cascade.group_judge import GroupAnswers, GroupJudge, GroupKey, GroupVerdict, order
from hamr.cascade.metrics import RouterMetrics
from hamr.cascade.retry import ask_until
from hamr.cascade.rubric_cascade import item_question, judged_value, pass_score, sample_with_items
from hamr.config.judged import ComparedConfig, RubricConfig
from hamr.config.rewards import RewardsConfig
from hamr.errors import VerdictUnparsable
from hamr.rewards.judged import VETOES, find_judged
from hamr.rewards.questions import JudgedText
from hamr.rewards.rubric import sample_rubric
from hamr.types import (
    Absent,
    Answer,
    Failure,
    ItemScore,
    Judgement,
    JudgeUnparsable,
    MalformedResponse,
    Outcome,
    Question,
    SampleKey,
    Scored,
    ScorerCall,
    ServiceSample,
    Vetoed,
)


@dataclass(frozen=True, kw_only=True)
class JudgedComponent:
    """One judged component of one response."""

    component: str
    outcome: Outcome
    judgement: Judgement | None = None
    calls: tuple[ScorerCall, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JudgeRequest:
    """One response to judge. `response`: its text as shown to the judges. `until`: deadline in event loop time."""

    sample: ServiceSample
    key: SampleKey
    siblings: int
    response: JudgedText
    until: float


class JudgedRewardScorer:
    """Judges of all rewards with a weight. Each comparative judge has a `GroupJudge`."""

    def __init__(
        self, rewards: RewardsConfig, pools: Mapping[str, CachedPool], metrics: RouterMetrics, *, group_wait_s: float
    ) -> None:
        """`pools` is keyed by pool name."""
        self._sections, self._veto_first = rewards.judges, rewards.veto_first
        self._put = ask_until if rewards.fallback == "wait" else CachedPool.ask
        self._pools = {name: pools[section.pool] for name, section in self._sections.items()}
        self._reranker = pools[rewards.rubric.reranker] if rewards.rubric.weight and rewards.rubric.reranker else None
        self._metrics = metrics
        self._panels = {
            name: GroupJudge(partial(self._ask, name), wait_s=group_wait_s, most=section.max_compared)
            for name, section in self._sections.items()
            if isinstance(section, ComparedConfig) and section.judging == "comparative"
        }

    async def judge(self, case: JudgeRequest) -> tuple[JudgedComponent, ...]:
        """Return one component per reward, in the order of the schema.

        With `veto_first`, risk and hallucination are judged first, and the other judges are not called for a vetoed
        response. A failed veto judge vetoes nothing: the other judges are called.
        """
        names = list(self._sections)
        first = [name for name in names if name in VETOES] if self._veto_first else []
        judged = {o.component: o for o in await asyncio.gather(*(self._one(name, case) for name in first))}
        fired = [name for name, o in judged.items() if o.judgement and VETOES[name].vetoes(o.judgement)]
        rest = [name for name in names if name not in first]
        if fired:
            self._decline(case.key, case.siblings)
            vetoed = Vetoed(detail=f"vetoed by {' and '.join(fired)}")
            judged |= {
                name: self._nothing(name, case) or JudgedComponent(component=name, outcome=vetoed) for name in rest
            }
        else:
            judged |= {o.component: o for o in await asyncio.gather(*(self._one(name, case) for name in rest))}
        return tuple(judged[name] for name in names)

    def refuse(self, malformed: MalformedResponse, key: SampleKey, siblings: int) -> tuple[JudgedComponent, ...]:
        """Return the components of a malformed response: a genuine 0 for each reward, without a judge.

        It asserts nothing, so it has no hallucination penalty. Its siblings do not wait for it.
        """
        self._decline(key, siblings)
        return tuple(JudgedComponent(component=name, outcome=malformed) for name in self._sections)

    async def close(self) -> None:
        """Cancel the groups that wait for responses."""
        for panel in self._panels.values():
            await panel.close()

    def _decline(self, key: SampleKey, siblings: int) -> None:
        for panel in self._panels.values():
            panel.decline(key, siblings)

    def _nothing(self, name: str, case: JudgeRequest) -> JudgedComponent | None:
        """Return the absent component if the sample has nothing for this judge to judge."""
        why = find_judged(name).absent(case.sample, self._sections[name])
        return None if why is None else JudgedComponent(component=name, outcome=Absent(detail=why))

    async def _one(self, name: str, case: JudgeRequest) -> JudgedComponent:
        nothing = self._nothing(name, case)
        if nothing is not None:
            return nothing
        if name in self._panels:
            verdict = await self._panels[name].judge(case.sample, case.key, case.siblings, case.response, case.until)
        elif self._reranker is not None and name == "rubric":
            verdict = await self._judge_items(case, self._reranker)
        else:
            verdict = await self._judge_alone(name, case.sample, case)
        if isinstance(verdict.result, Failure):
            return JudgedComponent(component=name, outcome=verdict.result, calls=verdict.calls)
        value = judged_value(verdict.result, self._sections[name])
        return JudgedComponent(
            component=name, outcome=Scored(value=value), judgement=verdict.result, calls=verdict.calls
        )

    async def _judge_alone(self, name: str, sample: ServiceSample, case: JudgeRequest) -> GroupVerdict[Judgement]:
        asked = await self._ask(name, sample, (), [case.response], case.until)
        return GroupVerdict(result=asked.results[0], calls=asked.calls)

    async def _judge_items(self, case: JudgeRequest, reranker: CachedPool) -> GroupVerdict[Judgement]:
        """Ask the reranker about every item of the rubric, then the judge about the items in doubt.

        A failure of either is the outcome: an item without its score has no reward.
        """
        section = self._sections["rubric"]
        assert isinstance(section, RubricConfig)
        items = sample_rubric(case.sample)
        questions = [item_question(case.sample, item, case.response) for item in items]
        replies = await asyncio.gather(*(self._put(reranker, question, until=case.until) for question in questions))
        calls = tuple(pool.answer.call for pool in replies if pool.answer.call is not None)
        for pool in replies:
            self._metrics.question("side", pool)
        failure = next((f for pool in replies if (f := failure_of("reranker", pool.answer)) is not None), None)
        if failure is not None:
            return GroupVerdict(result=failure, calls=calls)
        passing = [pass_score(item, pool.answer.score or 0.0) for item, pool in zip(items, replies, strict=True)]
        cascade = Cascade.from_config(section.cascade)
        doubt = [i for i, s_r in enumerate(passing) if cascade.needs_judge(confidence(s_r))]
        self._metrics.rubric_items += len(items)
        self._metrics.judged_items += len(doubt)
        known: dict[int, float] = {}
        reason = ""
        if doubt:
            verdict = await self._judge_alone("rubric", sample_with_items(case.sample, [items[i] for i in doubt]), case)
            calls += verdict.calls
            if isinstance(verdict.result, Failure):
                return GroupVerdict(result=verdict.result, calls=calls)
            known = {i: float(passed) for i, (_, passed) in zip(doubt, verdict.result.items, strict=True)}
            reason = verdict.result.reason
        scores = tuple(
            ItemScore(weight=item.weight, s_r=s_r, s_j=known.get(i))
            for i, (item, s_r) in enumerate(zip(items, passing, strict=True))
        )
        return GroupVerdict(result=Judgement(component="rubric", item_scores=scores, reason=reason), calls=calls)

    async def _ask(
        self, name: str, sample: ServiceSample, group: GroupKey, responses: Sequence[JudgedText], until: float
    ) -> GroupAnswers[Judgement]:
        """Ask one question about these responses. Retry while the answer is unparseable or omits one of them.

        The order in the prompt depends on the group and the attempt, so no response has a fixed position. Responses
        that the last parseable answer omits get JudgeUnparsable. If no answer was parseable, all of them do.
        """
        section = self._sections[name]
        results: tuple[Judgement | Failure, ...] = ()
        calls: list[ScorerCall] = []
        for attempt in range(1 + section.max_reasks):
            places = order(len(responses), *group, name, attempt)
            question = find_judged(name).question(sample, [responses[i] for i in places], section, attempt)
            reply = await self._put(self._pools[name], question, until=until)
            calls += [reply.answer.call] if reply.answer.call else []
            self._metrics.question("side", reply, again=attempt > 0)
            read = self._read(name, question, reply.answer, sample, len(responses))
            if isinstance(read, Failure):
                results = results or (read,) * len(responses)
                if isinstance(read, JudgeUnparsable):
                    continue
                break  # judge unavailable or deadline passed: a retry would not help
            left_out = JudgeUnparsable(detail="the judge's answer leaves this response out")
            by_place = dict(zip(places, read, strict=True))
            results = tuple(by_place[i] or left_out for i in range(len(responses)))
            if None not in read:
                break
        return GroupAnswers(results=results, calls=tuple(calls))

    def _read(
        self, name: str, question: Question, answer: Answer, sample: ServiceSample, count: int
    ) -> tuple[Judgement | None, ...] | Failure:
        """Return the judgement of each response in the prompt, or the typed failure."""
        failure = written_failure(answer)
        if failure is not None:
            return failure
        try:
            return find_judged(name).read(answer.text or "", sample, count, self._sections[name])
        except VerdictUnparsable as error:
            # Do not serve the unparseable answer to a sibling with the same question.
            self._pools[name].drop(question)
            return JudgeUnparsable(detail=str(error))
