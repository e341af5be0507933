"""A whole evaluation: every policy answers every item, then judges grade the responses.

Answers are collected first, so that judging does not affect their latency. The judges are those of the side rewards
(`hamr.rewards`), queried as the router does: responses to one item are compared in one prompt where the reward
compares, and unparseable answers are retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hamr.bench.answers import GIVE_UP, OpenQuestion, PolicyResponse, PolicyUnderTest, process_all
from hamr.bench.olabench.items import BenchItem, Subset, visible_sample
from hamr.bench.olabench.journal import Journal, JudgeVerdict
from hamr.bench.olabench.responses import read_response, response_question
from hamr.cascade.cached_pool import CachedPool
from hamr.cascade.judged_rewards import JudgedComponent, JudgedRewardScorer, JudgeRequest
from hamr.cascade.metrics import RouterMetrics
from hamr.cascade.retry import patient
from hamr.config.judged import ComparedConfig, JudgedConfig
from hamr.config.olabench import OlabenchConfig
from hamr.config.rewards import ConsistencyConfig, RewardsConfig
from hamr.data.language import language_of
from hamr.data.progress import item_key
from hamr.protocols import Ask
from hamr.rewards.judged import JUDGED
from hamr.rewards.questions import JudgedText, case_variables
from hamr.rewards.written import WrittenPrompt
from hamr.types import Failure, Language, Question, SampleKey, ServiceSample

COMPONENTS: Mapping[Subset, tuple[str, ...]] = {
    "core": ("dialogue", "policy", "tool"),
    "risk": ("risk",),
    "hallucination": ("hallucination",),
}
ALL = tuple(name for names in COMPONENTS.values() for name in names)
_PATIENCE_S = 6 * 3600.0
"""Client timeout in seconds: the pool has its own deadlines, and its queue may be long."""

ReportCalls = Callable[[str, int], None]
"""Callback after every answer: the policy or judge, and the number of finished tasks."""


@dataclass(frozen=True, kw_only=True)
class ComponentJudge:
    """The judge of one component: its pool, the reward's section, and the settings that determine its answers."""

    component: str
    pool: str
    section: JudgedConfig
    settings: Mapping[str, Any]
    at_once: int = 1
    language: Language | None = None
    """Language of the items that it judges; None: all."""

    @property
    def name(self) -> str:
        return f"{self.component} ({self.language})" if self.language else self.component

    def judges(self, trial: Trial) -> bool:
        """Return whether the trial is this judge's."""
        return trial.component == self.component and self.language in (None, trial.language)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Responses to one sample for one judge; those of several policies are compared where the judge compares."""

    id: str
    sample: ServiceSample
    component: str
    responses: Mapping[str, JudgedText]

    @property
    def language(self) -> Language:
        return item_language(self.sample)


def item_language(sample: ServiceSample) -> Language:
    """Return the language of the dialogue: what the customer says, or the policy where that is too short to tell."""
    text = " ".join(turn.content for turn in sample.history if turn.role == "customer")
    return language_of(text if any(c.isalpha() for c in text) else sample.policy)


# --- answers -----------------------------------------------------------------------------------


def _question(policy: PolicyUnderTest, item: BenchItem, options: OlabenchConfig) -> Question:
    return response_question(
        item,
        options.cot,
        native=policy.native,
        temperature=options.temperature,
        max_new_tokens=options.max_new_tokens,
        seed=options.seed,
    )


def response_to(journal: Journal, policy: PolicyUnderTest, item: BenchItem, options: OlabenchConfig) -> PolicyResponse:
    """Return the policy's response; a missing response counts as a transient failure."""
    return journal.response_to(policy, item.sample.id, _question(policy, item, options))


def open_items(
    journal: Journal, policy: PolicyUnderTest, items: Sequence[BenchItem], options: OlabenchConfig
) -> list[OpenQuestion]:
    return journal.open_questions(policy, {item.sample.id: _question(policy, item, options) for item in items})


async def collect(
    journal: Journal,
    policies: Sequence[PolicyUnderTest],
    items: Sequence[BenchItem],
    asks: Mapping[str, Ask],
    options: OlabenchConfig,
    report: ReportCalls,
) -> None:
    """Ask every policy its unanswered items, one policy after the other, so that latencies are not affected.

    Latency is measured at concurrency 1, on `latency_items` of them.
    """
    for policy in policies:
        if left := open_items(journal, policy, items, options):
            timed = sum(response_to(journal, policy, item, options).at_once == 1 for item in items)
            alone = max(0, options.latency_items - timed)
            await _answers(journal, policy, left, alone, patient(asks[policy.name], options), options, report)


async def _answers(
    journal: Journal,
    policy: PolicyUnderTest,
    left: Sequence[OpenQuestion],
    alone: int,
    ask: Ask,
    options: OlabenchConfig,
    report: ReportCalls,
) -> None:
    """Ask the first `alone` of them one after the other, which gives their latency, then the others concurrently."""
    if await journal.collect(
        left[:alone], ask, 1, lambda done: report(policy.name, done), measured=True, give_up=GIVE_UP // 4
    ):  # one by one, a pool that is down takes long to fail
        at_once, before = options.at_once or policy.at_once, len(left[:alone])
        await journal.collect(
            left[alone:], ask, at_once, lambda done: report(policy.name, before + done), measured=True
        )


# --- verdicts ----------------------------------------------------------------------------------


def trials_of(
    journal: Journal, policies: Sequence[PolicyUnderTest], items: Sequence[BenchItem], options: OlabenchConfig
) -> list[Trial]:
    """Return the trials for the existing responses."""
    found = []
    for item in items:
        responses = {}
        for policy in policies:
            text = response_to(journal, policy, item, options).text
            if text is not None:
                responses[policy.name] = read_response(text, options.cot, strip_fence=options.fence == "strip").text
        if responses:
            sample = visible_sample(item)
            names = components(item, options)
            found += [Trial(id=item.sample.id, sample=sample, component=name, responses=responses) for name in names]
    return found


def components(item: BenchItem, options: OlabenchConfig) -> tuple[str, ...]:
    """Return the judges that see an item."""
    return ALL if options.judged == "all" else COMPONENTS[item.subset]


def verdict_key(judge: ComponentJudge, trial: Trial, name: str) -> str:
    """Return a key of the judge's input: the case, the response, and those that it is compared with."""
    mine = trial.responses[name]
    others: list[JudgedText] = []
    if isinstance(judge.section, ComparedConfig) and judge.section.judging == "comparative":
        others = sorted(set(trial.responses.values()) - {mine}, key=lambda response: (response.words, response.call))
    read = [[response.words, response.call] for response in (mine, *others)]
    return item_key("verdict", trial.component, dict(judge.settings), case_variables(trial.sample), read)


def verdict_on(journal: Journal, judge: ComponentJudge, trial: Trial, name: str) -> JudgeVerdict:
    return journal.verdict(verdict_key(judge, trial, name))


def open_trials(journal: Journal, judge: ComponentJudge, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials with an unjudged response; responses that are compared are all judged again."""
    return [
        trial
        for trial in trials
        if judge.judges(trial) and any(verdict_on(journal, judge, trial, name).passing for name in trial.responses)
    ]


def judge_settings(section: JudgedConfig, component: str, pools: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that determine a judge's answers: its pools, its templates, and its options."""
    trial = ServiceSample(id="", ticket={}, policy="", tools=(), history=(), references=())
    counts = (1, 2) if isinstance(section, ComparedConfig) and section.judging == "comparative" else (1,)
    asked = (JUDGED[component].question(trial, [JudgedText(words=str(i)) for i in range(n)], section) for n in counts)
    return {
        "pools": dict(pools),
        "prompts": [WrittenPrompt.load(question.prompt).id for question in asked],
        "section": section.model_dump(mode="json", exclude={"weight", "pool", "scale"}),
    }


async def judge_all(
    journal: Journal,
    judges: Sequence[ComponentJudge],
    trials: Sequence[Trial],
    asks: Mapping[str, Ask],
    options: OlabenchConfig,
    report: ReportCalls,
) -> None:
    """Run all remaining judgements. The judges run in parallel."""

    async def work(judge: ComponentJudge) -> None:
        left = open_trials(journal, judge, trials)
        if not left:
            return
        scorer = _judged_scorer(judge, asks[judge.pool], options)

        async def one(trial: Trial) -> bool:
            judged = await _judge_trial(scorer, trial)
            for name, component in judged.items():
                about = _about(trial, name, component)
                journal.add_verdict(verdict_key(judge, trial, name), _verdict(component), about)
            return not all(_verdict(component).passing for component in judged.values())

        try:
            await process_all(left, one, judge.at_once, lambda n: report(judge.name, n))
        finally:
            await scorer.close()

    await asyncio.gather(*(work(judge) for judge in judges))


def _judged_scorer(judge: ComponentJudge, ask: Ask, options: OlabenchConfig) -> JudgedRewardScorer:
    section = judge.section.model_copy(update={"weight": 1.0})
    rewards = RewardsConfig(consistency=ConsistencyConfig(weight=0.0)).model_copy(update={judge.component: section})
    pools = {section.pool: CachedPool(patient(ask, options), deadline_s=_PATIENCE_S)}
    return JudgedRewardScorer(rewards, pools, RouterMetrics(), group_wait_s=_PATIENCE_S)


async def _judge_trial(scorer: JudgedRewardScorer, trial: Trial) -> dict[str, JudgedComponent]:
    until = asyncio.get_running_loop().time() + _PATIENCE_S

    async def judge(number: int, response: JudgedText) -> JudgedComponent:
        key = SampleKey(run="olabench", step=0, prompt=trial.id, sample=number)
        (found,) = await scorer.judge(
            JudgeRequest(sample=trial.sample, key=key, siblings=len(trial.responses), response=response, until=until)
        )
        return found

    found = await asyncio.gather(*(judge(n, response) for n, response in enumerate(trial.responses.values())))
    return dict(zip(trial.responses, found, strict=True))


def _verdict(component: JudgedComponent) -> JudgeVerdict:
    if isinstance(component.outcome, Failure):
        return JudgeVerdict(failure=component.outcome.kind, detail=component.outcome.detail[:300])
    return JudgeVerdict(judgement=component.judgement)


def _about(trial: Trial, name: str, component: JudgedComponent) -> dict[str, Any]:
    return {
        "policy": name,
        "item": trial.id,
        "component": trial.component,
        "tokens": sum(call.prompt_tokens + call.output_tokens for call in component.calls),
        "cost": sum(call.cost for call in component.calls),
    }
