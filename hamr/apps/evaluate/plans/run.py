"""`hamr evaluate benchmark=plans`: a judge compares the plans of policies with gold plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console

from hamr.apps.evaluate.plans.judging import (
    DIMENSIONS,
    KEYS,
    LEVELS,
    GoldPlan,
    judging_question,
    plan_of,
    planning_question,
    read_comparison,
    read_gold,
)
from hamr.apps.evaluate.policies import AskedPolicies, with_policies
from hamr.apps.evaluate.results import write_results
from hamr.apps.shared.pools_up import pools_of, with_pools, writing_pool
from hamr.apps.shared.progress import progress
from hamr.bench.answers import PolicyResponse, PolicyUnderTest, process_all
from hamr.bench.folder import CALLS, counted_calls, usage, usage_table
from hamr.bench.olabench.journal import Journal, JudgeVerdict
from hamr.bench.statistics import share_interval
from hamr.cascade.retry import patient
from hamr.data.progress import item_key
from hamr.errors import HamrError, VerdictUnparsable
from hamr.protocols import Ask
from hamr.report.values import Column, Interval, Page, PageSection, Table
from hamr.rewards.written import WrittenPrompt
from hamr.types import TRANSIENT, Judgement

if TYPE_CHECKING:
    from hamr.apps.evaluate.command import EvaluatePlans


def start(request: EvaluatePlans) -> int:
    """Run the evaluation. Raises BadInput for invalid input; HamrError if no plan was judged."""
    asked = with_policies(request.config(), "policy", request.policy, "none", request)
    judge = writing_pool(asked.config, "judge", request.judge)
    work = PlanWork(request, asked, read_gold(request.data), judge)
    console = Console()
    with Journal(request.output) as journal:
        work.run(journal, console)
        rows = work.rows(journal)
    metrics = {
        "judge": judge,
        "plans": len(work.gold),
        "policies": figures(rows),
        "usage": usage(request.output, (CALLS,)),
    }
    write_results(plans_page(metrics), metrics, rows, request.output / "metrics.json", console)
    if not any(row["levels"] or row["state"] == "unreadable" for row in rows):
        raise HamrError(f"no plan was judged; see {request.output / 'judgements.jsonl'} and the pools' logs")
    return 0


class PlanWork:
    """The questions of an evaluation and their answers in a journal."""

    def __init__(self, request: EvaluatePlans, asked: AskedPolicies, gold: Sequence[GoldPlan], judge: str) -> None:
        self.request, self.asked, self.gold, self.judge = request, asked, gold, judge
        self.policies = asked.under_test(request.policy, [one.sample.id for one in gold])
        self.questions = {one.sample.id: planning_question(one, request) for one in gold}

    def response(self, journal: Journal, policy: PolicyUnderTest, gold: GoldPlan) -> PolicyResponse:
        return journal.response_to(policy, gold.sample.id, self.questions[gold.sample.id])

    def verdict_key(self, gold: GoldPlan, plan: tuple[str, str]) -> str:
        question = judging_question(gold, plan)
        prompt = WrittenPrompt.load(question.prompt).id
        return item_key("plan", self.asked.settings_of(self.judge), prompt, dict(question.variables))

    def to_judge(self, journal: Journal) -> list[tuple[GoldPlan, tuple[str, str]]]:
        """Return the plans without a verdict, equal ones once."""
        left: dict[str, tuple[GoldPlan, tuple[str, str]]] = {}
        for gold in self.gold:
            for policy in self.policies:
                plan = plan_of(self.response(journal, policy, gold).text or "")
                if plan is None:
                    continue
                key = self.verdict_key(gold, plan)
                if journal.verdict(key).passing:
                    left[key] = (gold, plan)
        return list(left.values())

    def run(self, journal: Journal, console: Console) -> None:
        """Collect the missing plans, then the missing verdicts."""
        left = [(one, found) for one in self.policies if (found := journal.open_questions(one, self.questions))]
        pools = [policy.name for policy, _ in left if policy.name in self.asked.pools]
        if not left and not self.to_judge(journal):
            return

        async def work(asks: Mapping[str, Ask]) -> None:
            with counted_calls(asks, self.request.output) as counted:
                async with self.asked.asks(counted) as by_policy:
                    for policy, questions in left:
                        ask = patient(by_policy[policy.name], self.request)
                        with progress({policy.name: len(questions)}, console, "plans") as report:
                            await journal.collect(questions, ask, policy.at_once, partial(report, policy.name))
                await self.judge_all(journal, counted[self.judge], console)

        run = pools_of("plans", self.request.output)
        with_pools(self.asked.config, list(dict.fromkeys([*pools, self.judge])), work, run=run)

    async def judge_all(self, journal: Journal, ask: Ask, console: Console) -> None:
        left = self.to_judge(journal)

        async def one(trial: tuple[GoldPlan, tuple[str, str]]) -> bool:
            gold, plan = trial
            verdict = await self.compare(ask, gold, plan)
            about = {"component": "plan", "item": gold.sample.id, "plan": list(plan)}
            journal.add_verdict(self.verdict_key(gold, plan), verdict, about)
            return not verdict.passing

        with progress({self.judge: len(left)}, console, "verdicts") as report:
            places = self.asked.config.pools[self.judge].places
            await process_all(left, one, places, lambda done: report(self.judge, done))

    async def compare(self, ask: Ask, gold: GoldPlan, plan: tuple[str, str]) -> JudgeVerdict:
        """Ask the judge, again where its answer cannot be parsed."""
        detail = ""
        for attempt in range(self.request.attempts):
            answer = await patient(ask, self.request)(judging_question(gold, plan, attempt))
            if answer.failure in TRANSIENT:
                return JudgeVerdict(failure="judge_unavailable", detail=answer.detail[:300])
            try:
                return JudgeVerdict(judgement=read_comparison(answer.text or ""))
            except VerdictUnparsable as error:
                detail = str(error)
        return JudgeVerdict(failure="judge_unparsable", detail=detail[:300])

    def rows(self, journal: Journal) -> list[dict[str, Any]]:
        """Return one row per policy and plan."""
        found = []
        for policy in self.policies:
            for gold in self.gold:
                text = self.response(journal, policy, gold).text
                plan = plan_of(text) if text is not None else None
                verdict = journal.verdict(self.verdict_key(gold, plan)) if plan else None
                judgement: Judgement | None = verdict.judgement if verdict else None
                state = "no answer" if text is None else "unreadable" if plan is None else "judged"
                if verdict is not None and judgement is None:
                    state = str(verdict.failure)
                found.append(
                    {
                        "policy": policy.name,
                        "id": gold.sample.id,
                        "state": state,
                        "levels": dict(zip(KEYS, judgement.labels, strict=True)) if judgement else {},
                        "reason": judgement.reason if judgement else "",
                    }
                )
        return found


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the shares of a policy's plans by level. An unreadable plan is inconsistent in everything.

    Plans without an answer or a verdict are left out and counted in `missing`.
    """
    found: dict[str, Any] = {}
    for name in dict.fromkeys(row["policy"] for row in rows):
        own = [row for row in rows if row["policy"] == name]
        counted = [row for row in own if row["levels"] or row["state"] == "unreadable"]
        given = [row["levels"] or dict.fromkeys(KEYS, "inconsistent") for row in counted]
        found[name] = {
            "plans": len(counted),
            "missing": len(own) - len(counted),
            "readable": asdict(share_interval([bool(row["levels"]) for row in counted])),
            **{
                key: {level: asdict(share_interval([one[key] == level for one in given])) for level in LEVELS}
                for key in KEYS
            },
        }
    return found


def plans_page(metrics: Mapping[str, Any]) -> Page:
    """Return the report: levels of the whole plans, and the consistent share by dimension."""
    policies = metrics["policies"]
    levels = tuple(
        (name, Interval.of(own["readable"]), *(Interval.of(own["judge_result"][level]) for level in LEVELS),
         own["plans"], own["missing"])
        for name, own in policies.items()
    )  # fmt: skip
    parts = tuple(
        (name, *(Interval.of(own[key]["consistent"]) for key in DIMENSIONS)) for name, own in policies.items()
    )
    share, count = "{:.1%}", "{:,}"
    first = (Column("policy"), *(Column(head, share) for head in ("readable", *LEVELS)))
    heads = ("first decision", "action details", "subsequent plan")
    name, own = next(iter(policies.items()))
    mean = own["judge_result"]["consistent"]["mean"]
    verdict = "no plan was judged" if mean is None else f"{mean:.0%} of {own['plans']} plans agree with the gold plan"
    return Page(
        title="Plans",
        summary=f"{name}: {verdict}.",
        facts=(f"{metrics['plans']} gold plans", f"judge {metrics['judge']}"),
        sections=(
            PageSection.of(
                "Whole plans",
                Table("", (*first, Column("plans", count), Column("missing", count)), levels),
                lead="Shares with 95 % Wilson intervals. An unreadable plan counts as inconsistent.",
            ),
            PageSection.of(
                "Consistent by dimension",
                Table("", (Column("policy"), *(Column(head, share) for head in heads)), parts),
            ),
            PageSection.of("Tokens and cost", usage_table(metrics["usage"]), detail=True),
        ),
    )
