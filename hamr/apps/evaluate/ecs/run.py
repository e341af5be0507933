"""`hamr evaluate benchmark=ecs`: an ensemble of judges compares responses with their references."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.console import Console

from hamr.apps.evaluate.ecs.report import ecs_page
from hamr.apps.evaluate.ecs.responses import (
    PolicyResponses,
    answer_samples,
    asked_policy,
    check_comparable,
    read_policy,
    to_answer,
)
from hamr.apps.evaluate.ecs.utility import agreement, read_rated
from hamr.apps.evaluate.results import write_results
from hamr.apps.scorer.pair_check import pair_question
from hamr.apps.shared.pools_up import pools_of, with_pools, with_starts, writing_pool
from hamr.apps.shared.preparation import load_splits
from hamr.apps.shared.progress import progress
from hamr.bench.agreement import Rating, between, level, with_people
from hamr.bench.answers import RESPONSES
from hamr.bench.ecs.figures import VALUES, by_sample, compare, corrected_mean, figures
from hamr.bench.ecs.judge_votes import FILE as JUDGEMENTS
from hamr.bench.ecs.judge_votes import EcsJudge, JudgeVotes, VoteQuestion
from hamr.bench.ecs.score import EcsPlan, EcsScores, mean_vote, plan_response, score_response
from hamr.bench.folder import usage
from hamr.cascade.auditors import ReplyLabels, read_labels
from hamr.config.benchmarks import EcsConfig
from hamr.config.matching import MatchingConfig
from hamr.config.pools import SPEED_ONLY
from hamr.config.schema import Config
from hamr.data.actions import unfence
from hamr.data.pairs import ReplyPair, read_pairs
from hamr.errors import BadInput, HamrError, did_you_mean, first_failure
from hamr.prompting.labels import Label
from hamr.prompting.templates import PromptTemplate
from hamr.protocols import Ask
from hamr.rewards.questions import consistency_question
from hamr.rewards.written import WrittenPrompt
from hamr.types import TRANSIENT, Question, Reply

if TYPE_CHECKING:
    from hamr.apps.evaluate.command import EvaluateEcs

RUN = "ecs"
PEOPLE: Mapping[str, Label] = {"consistent": "yes", "partial": "part", "inconsistent": "no"}


def start(request: EvaluateEcs) -> int:
    """Run the evaluation. Raises BadInput for invalid input, before anything starts; HamrError if no judge voted."""
    config = request.config()
    judges = judges_of(request, config)
    utility = _utility_judge(request, config) if request.utility else None
    rated = read_rated(request.utility_labels) if request.utility_labels is not None else []
    console = Console()
    asked_now = asked_policy(request, config) if request.policy else None
    pairs = read_pairs(request.labels) if request.labels is not None else []
    audits = read_labels(str(request.audits)) if request.audits is not None else {}
    policies = [
        to_answer(request, config) if asked_now else read_policy(request.source, config, request.stage),
        *([read_policy(request.compare, config, request.stage)] if request.compare is not None else []),
    ]
    if len(policies) == 2:
        check_comparable(*policies)
    if asked_now:
        policies[0] = answer_samples(request, asked_now, policies[0], console)
    named = _name_policies(policies, request)
    plans = {
        name: plans_of(policy, config.rewards.consistency.matching, strip_fence=request.fence == "strip")
        for name, policy in named.items()
    }
    asked = questions(plans, pairs)
    with JudgeVotes(request.output, judges) as votes:
        tasks = {judge.name: (judge, asked) for judge in judges}
        if utility is not None:
            tasks[f"{utility.name} (utility)"] = (utility, [one.asked for one in rated])
        _ask(config, votes, tasks, console)
        found = compute_results(votes, plans, pairs, asked, request, audits)
        for name, policy in named.items():
            unanswered = sum(not group.responses for group in policy.groups)
            found["metrics"]["policies"][name]["unanswered"] = unanswered
        found["metrics"]["usage"] = usage(request.output, (RESPONSES, JUDGEMENTS))
        found["metrics"]["utility"] = agreement(votes, utility, rated, request) if utility is not None else None
        metrics, rows = found["metrics"], found["items"]
        write_results(ecs_page(metrics, rows), metrics, rows, request.output / "metrics.json", console)
    return _exit_code(metrics, asked, votes)


# --- judges and questions ----------------------------------------------------------------------


def judges_of(request: EvaluateEcs, config: Config) -> list[EcsJudge]:
    """Return the named judges; by default, every judge pool of the configuration. Raises BadInput."""
    named = request.judges or tuple(name for name, pool in config.pools.items() if pool.role == "judge")
    if not named:
        raise BadInput("judges", None, "no pool has the role judge; name pools, or choose some with pools=ecs")
    for name in named:
        if name not in config.pools:
            known = sorted(config.pools)
            raise BadInput("judges", name, f"no such pool; {did_you_mean(name, known)}there are: {', '.join(known)}")
        if config.pools[name].role != "judge":
            role = config.pools[name].role
            remedy = f"is a {role}, which gives no three-level verdict; set pools.{name}.role=judge and its prompt"
            raise BadInput("judges", name, remedy)
    prompts = {name: config.pools[name].prompt for name in named}
    return [
        _judge(request, config, name, PromptTemplate.read(prompt).id if prompt else "")
        for name, prompt in prompts.items()
    ]


def _judge(request: EvaluateEcs, config: Config, name: str, prompt: str | list[str]) -> EcsJudge:
    pools = with_starts(config, {name: config.pools[name]})
    settings: dict[str, Any] = {
        "pools": {key: pool.model_dump(mode="json", exclude=SPEED_ONLY) for key, pool in pools.items()},
        "prompt": prompt,
    }
    if config.pools[name].finetune:
        # A judge's votes depend on its training data.
        settings["data"] = config.data.model_dump(mode="json") | {"seed": config.experiment.seed}
    return EcsJudge(
        name=name,
        settings=settings,
        at_once=config.pools[name].places,
        attempts=request.attempts,
        longest_wait_s=request.longest_wait_s,
    )


def _utility_judge(request: EvaluateEcs, config: Config) -> EcsJudge:
    name = writing_pool(config, "utility", request.utility)
    return _judge(request, config, name, [WrittenPrompt.load(f"utility.{language}").id for language in ("en", "zh")])


def _name_policies(policies: Sequence[PolicyResponses], request: EvaluateEcs) -> dict[str, PolicyResponses]:
    """Name the policies; files of one name in two folders are distinguished by their paths."""
    if len({policy.name for policy in policies}) == len(policies):
        return {policy.name: policy for policy in policies}
    paths = [str(request.source), str(request.compare)]
    if paths[0] == paths[1]:
        raise BadInput("compare", paths[1], "is the input; name another file of responses")
    return dict(zip(paths, policies, strict=True))


def plans_of(
    policy: PolicyResponses, matching: MatchingConfig | None = None, *, strip_fence: bool = False
) -> list[EcsPlan]:
    return [
        plan_response(
            group.sample, unfence(text) if strip_fence else text, index, policy.formats.of(group.sample), matching
        )
        for group in policy.groups
        for index, text in enumerate(group.responses)
    ]


def questions(plans: Mapping[str, Sequence[EcsPlan]], pairs: Sequence[ReplyPair]) -> list[VoteQuestion]:
    """Return the questions: every reply with every reply among its references, and every labelled pair."""
    about = [
        VoteQuestion(question=question_of(plan, reference), item=plan.sample.id, reference=reference)
        for some in plans.values()
        for plan in some
        for reference in plan.ask
    ]
    return [*about, *(VoteQuestion(question=pair_question(p), item=f"pair {i}") for i, p in enumerate(pairs, start=1))]


def question_of(plan: EcsPlan, reference: int) -> Question:
    acceptable = plan.sample.references[reference].action
    assert isinstance(acceptable, Reply) and isinstance(plan.action, Reply), "judges compare replies with replies"
    return consistency_question(plan.sample, acceptable, plan.action)


def _ask(
    config: Config, votes: JudgeVotes, tasks: Mapping[str, tuple[EcsJudge, Sequence[VoteQuestion]]], console: Console
) -> None:
    """Collect the missing votes of every task, by its name: a judge and its questions."""
    left = {name: len(votes.open(judge, asked)) for name, (judge, asked) in tasks.items()}
    distinct = len({json.dumps(dict(one.question.variables)) for _, asked in tasks.values() for one in asked})
    counts = ", ".join(f"{name} {count}" for name, count in left.items())
    console.print(f"ecs: {distinct} questions to {len(left)} judges; to be asked: {counts}", highlight=False)
    wanted = {name: task for name, task in tasks.items() if left[name]}
    if not wanted:
        return

    async def work(asks: Mapping[str, Ask]) -> None:
        with progress({name: left[name] for name in wanted}, console, "votes") as report:

            async def collect(name: str) -> None:
                judge, asked = wanted[name]
                await votes.collect(judge, asked, asks[judge.name], lambda done: report(name, done))

            await asyncio.gather(*map(collect, wanted))

    pools = list(dict.fromkeys(judge.name for judge, _ in wanted.values()))
    finetuned = any(config.pools[name].finetune for name in pools)
    splits = load_splits(config.data, config.experiment.seed) if finetuned else None
    with_pools(config, pools, work, run=pools_of(RUN, votes.folder), splits=splits)


# --- results -----------------------------------------------------------------------------------


def compute_results(
    votes: JudgeVotes,
    plans: Mapping[str, Sequence[EcsPlan]],
    pairs: Sequence[ReplyPair],
    asked: Sequence[VoteQuestion],
    ecs: EcsConfig,
    audits: ReplyLabels,
) -> dict[str, Any]:
    """Return `metrics`, JSON-serialisable, and `items`: one row per response."""
    luck = {"resamples": ecs.resamples, "seed": ecs.seed}
    scores = {name: [compute_scores(votes, plan, ecs) for plan in some] for name, some in plans.items()}
    metrics: dict[str, Any] = {
        "options": ecs.model_dump(mode="json", include=set(EcsConfig.model_fields)),
        "policies": {name: asdict(figures(some, **luck)) for name, some in scores.items()},
        "comparison": None,
        "judges": {judge.name: _judge_metrics(votes, judge, asked, ecs) for judge in votes.judges},
        "between_judges": _between(votes, asked),
        "people": _people(votes, pairs, ecs) if pairs else None,
        "debiased": {name: found for name in plans if (found := _corrected_mean(plans[name], scores[name], audits))},
    }
    if len(scores) == 2:
        (a, ours), (b, theirs) = scores.items()
        # A sample that one policy did not answer has no score of it.
        every: dict[str, float | None] = dict.fromkeys(s.id for s in (*ours, *theirs))
        compared = {
            name: asdict(compare(every | by_sample(ours, value), every | by_sample(theirs, value), **luck))
            for name, value in VALUES.items()
        }
        metrics["comparison"] = {"a": a, "b": b, **compared}
    rows = [
        {"policy": name, **asdict(s), "response": plan.text}
        for name in plans
        for s, plan in zip(scores[name], plans[name], strict=True)
    ]
    return {"metrics": metrics, "items": rows}


def _corrected_mean(plans: Sequence[EcsPlan], scores: Sequence[EcsScores], audits: ReplyLabels) -> dict[str, float]:
    replies = {(plan.sample.id, plan.index): plan.action for plan in plans}
    texts = {key: (key[0], action.content.strip()) for key, action in replies.items() if isinstance(action, Reply)}
    return corrected_mean(scores, {key: audits[reply] for key, reply in texts.items() if reply in audits})


def compute_scores(votes: JudgeVotes, plan: EcsPlan, ecs: EcsConfig) -> EcsScores:
    hard = ecs.scores == "hard"
    scores = {
        reference: [
            rating[0] if rating is not None else None
            for rating in votes.ratings(question_of(plan, reference), hard=hard)
        ]
        for reference in plan.ask
    }
    return score_response(plan, scores)


def _judge_metrics(votes: JudgeVotes, judge: EcsJudge, asked: Sequence[VoteQuestion], ecs: EcsConfig) -> dict[str, Any]:
    """Return the number of a judge's answers by level, and of missing votes by reason."""
    given = [votes.vote(judge, question) for question in _distinct(asked)]
    ratings = [r for vote in given if (r := vote.rating(hard=ecs.scores == "hard")) is not None]
    return {
        "model": judge.settings["pools"][judge.name]["model"],
        "prompt": judge.settings["prompt"],
        "asked": len(given),
        "missing": dict(Counter(vote.failure for vote in given if vote.failure is not None)),
        "mean": fmean(value for value, _ in ratings) if ratings else None,
        "levels": dict(Counter(label for _, label in ratings)),
    }


def _between(votes: JudgeVotes, asked: Sequence[VoteQuestion]) -> list[dict[str, Any]]:
    distinct = _distinct(asked)
    levels = {
        judge.name: [r[1] if (r := votes.vote(judge, q).rating(hard=True)) is not None else None for q in distinct]
        for judge in votes.judges
    }
    return [{"judges": [a, b], **asdict(between(levels[a], levels[b]))} for a, b in combinations(levels, 2)]


def _people(votes: JudgeVotes, pairs: Sequence[ReplyPair], ecs: EcsConfig) -> dict[str, Any]:
    """Compare the ensemble and every single judge with human labels."""
    people = [PEOPLE[pair.label] for pair in pairs]
    by_pair = [votes.ratings(pair_question(pair), hard=ecs.scores == "hard") for pair in pairs]

    def compare_levels(ratings: Sequence[Rating | None]) -> dict[str, Any]:
        return asdict(with_people(ratings, people, resamples=ecs.resamples, seed=ecs.seed))

    return {
        "pairs": len(pairs),
        "ensemble": compare_levels([_together(ratings) for ratings in by_pair]),
        "judges": {judge.name: compare_levels([r[i] for r in by_pair]) for i, judge in enumerate(votes.judges)},
    }


def _together(ratings: Sequence[Rating | None]) -> Rating | None:
    mean = mean_vote([rating[0] if rating is not None else None for rating in ratings])
    return None if mean is None else (mean, level(mean))


def _distinct(asked: Sequence[VoteQuestion]) -> list[Question]:
    return list({json.dumps(dict(one.question.variables)): one.question for one in asked}.values())


def _exit_code(metrics: Mapping[str, Any], asked: Sequence[VoteQuestion], votes: JudgeVotes) -> int:
    """Print the number of votes missing for transient reasons. Raises HamrError where questions were asked and no judge
    voted."""
    judges = metrics["judges"]
    if asked and all(sum(judge["missing"].values()) == judge["asked"] for judge in judges.values()):
        reasons = dict(sum((Counter(judge["missing"]) for judge in judges.values()), Counter()))
        cause = first_failure(votes.vote(judge, one.question).detail for judge in votes.judges for one in asked)
        remedy = f"see {votes.folder / JUDGEMENTS} and run the command again"
        raise HamrError(f"no judge gave a vote ({reasons}){cause}; {remedy}")
    passing = sum(count for judge in judges.values() for why, count in judge["missing"].items() if why in TRANSIENT)
    if passing:
        print(f"votes missing because a judge did not answer: {passing}; the same command asks for them again")
    return 0
