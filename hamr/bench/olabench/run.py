"""A whole evaluation: every policy answers every item, then judges grade the responses.

Answers are collected first, so that judging does not affect their latency. The judges are those of the side rewards
(`hamr.rewards`), queried as the router does: responses to one item are compared in one prompt where the reward
compares, and unparseable answers are retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hamr.bench.answers import GIVE_UP, OpenQuestion, PolicyResponse, PolicyUnderTest, process_all
from hamr.bench.olabench.items import BenchItem, Subset, visible_sample
from hamr.bench.olabench.journal import Journal, JudgeVerdict
from hamr.bench.olabench.labelled import Labelled
from hamr.bench.olabench.responses import ResponseReading, read_response, response_question
from hamr.cascade.cached_pool import CachedPool
from hamr.cascade.judged_rewards import JudgedComponent, JudgedRewardScorer, JudgeRequest
from hamr.cascade.metrics import RouterMetrics
from hamr.cascade.retry import patient
from hamr.config.benchmarks import OlabenchConfig
from hamr.config.judged import ComparedConfig, JudgedConfig
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
LABELLED = "labelled"
"""Policy name under which labelled responses are judged."""
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


@dataclass(frozen=True, kw_only=True)
class OlaBenchWork:
    """Tasks of an evaluation: items for the policies, and labelled responses by file. Its journal has the answers."""

    options: OlabenchConfig
    items: Sequence[BenchItem]
    policies: Sequence[PolicyUnderTest]
    labelled: Mapping[str, Sequence[Labelled]]
    judges: Sequence[ComponentJudge]

    def question(self, policy: PolicyUnderTest, item: BenchItem) -> Question:
        return response_question(
            item,
            self.options.cot,
            native=policy.native,
            temperature=self.options.temperature,
            max_new_tokens=self.options.max_new_tokens,
            seed=self.options.seed,
        )

    def response_to(self, journal: Journal, policy: PolicyUnderTest, item: BenchItem) -> PolicyResponse:
        """Return the policy's response; a missing response counts as a transient failure."""
        return journal.response_to(policy, item.sample.id, self.question(policy, item))

    def read(self, text: str) -> ResponseReading:
        return read_response(text, self.options.cot, strip_fence=self.options.fence == "strip")

    def open_items(self, journal: Journal, policy: PolicyUnderTest) -> list[OpenQuestion]:
        return journal.open_questions(policy, {item.sample.id: self.question(policy, item) for item in self.items})

    async def collect(self, journal: Journal, asks: Mapping[str, Ask], report: ReportCalls) -> None:
        """Ask every policy its unanswered items, one policy after the other, so that latencies are not affected.

        Latency is measured at concurrency 1, on the first `latency_items` of them.
        """
        for policy in self.policies:
            left = self.open_items(journal, policy)
            if not left:
                continue
            timed = sum(self.response_to(journal, policy, item).at_once == 1 for item in self.items)
            alone = left[: max(0, self.options.latency_items - timed)]
            ask, at_once = patient(asks[policy.name], self.options), self.options.at_once or policy.at_once

            def say(done: int, name: str = policy.name, before: int = 0) -> None:
                report(name, before + done)

            # One by one, a pool that is down takes long to fail.
            if await journal.collect(alone, ask, 1, say, measured=True, give_up=GIVE_UP // 4):
                say_more = partial(say, before=len(alone))
                await journal.collect(left[len(alone) :], ask, at_once, say_more, measured=True)

    def components(self, item: BenchItem) -> tuple[str, ...]:
        """Return the judges that see an item."""
        return ALL if self.options.judged == "all" else COMPONENTS[item.subset]

    def trials(self, journal: Journal) -> list[Trial]:
        """Return the trials of the existing responses and of every labelled one."""
        found = []
        for item in self.items:
            texts = {policy.name: self.response_to(journal, policy, item).text for policy in self.policies}
            responses = {name: self.read(text).text for name, text in texts.items() if text is not None}
            if responses:
                found += _trials(item.sample.id, item, self.components(item), responses)
        for file, rows in self.labelled.items():
            found += [trial for row in rows for trial in label_trials(file, row)]
        return found


def _trials(name: str, item: BenchItem, judges: Sequence[str], responses: Mapping[str, JudgedText]) -> list[Trial]:
    sample = visible_sample(item)
    return [Trial(id=name, sample=sample, component=judge, responses=responses) for judge in judges]


def label_trials(file: str, row: Labelled) -> list[Trial]:
    """Return one trial per judge with a label. Labelled responses are judged singly, even if the judge compares."""
    responses = {LABELLED: read_response(row.response, "none").text}
    return _trials(f"{file}:{row.id}", row.item, row.labels.components, responses)


# --- verdicts ----------------------------------------------------------------------------------


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
