"""`hamr evaluate benchmark=olabench`: policies answer, judges read; and the judges themselves beside known labels."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from hamr.config.load import load_config
from hamr.config.schema import Config, ConsistencyConfig
from hamr.errors import BadInput, HamrError
from hamr.evaluation.folder import write_aside
from hamr.evaluation.olabench.figures import Outcome, policy_figures
from hamr.evaluation.olabench.grading import graded
from hamr.evaluation.olabench.items import Item, read_items, shown
from hamr.evaluation.olabench.journal import Journal
from hamr.evaluation.olabench.labelled import Labelled, read_labelled
from hamr.evaluation.olabench.responses import read_response
from hamr.evaluation.olabench.run import (
    ALL,
    COMPONENTS,
    Judge,
    Policy,
    Trial,
    collect,
    judge_all,
    judge_settings,
    response_to,
    trials_of,
    unanswered,
    unjudged,
    verdict_on,
)
from hamr.jobs.olabench_request import Request, read_request
from hamr.jobs.policies import is_file, name_of, read_responses, with_policies
from hamr.jobs.pools_up import capacity, with_pools, writing_pool
from hamr.jobs.score import SPEED_ONLY
from hamr.observability.olabench_console import progress, tables
from hamr.protocols import Ask
from hamr.rewards.judged import check_prompts

RUN = "olabench"
LABELLED = "labelled"
"""Whose responses the labelled ones are said to be."""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What there is to do: items for the policies, and labelled responses by file."""

    items: Sequence[Item]
    policies: Sequence[Policy]
    labelled: Mapping[str, Sequence[Labelled]]
    judges: Sequence[Judge]

    @property
    def label_trials(self) -> list[Trial]:
        return [
            Trial(
                id=f"{file}:{row.id}",
                sample=shown(row.item),
                component=component,
                said={LABELLED: read_response(row.response, "none").said},
            )
            for file, rows in self.labelled.items()
            for row in rows
            for component in row.labels.components
        ]


def main(args: list[str]) -> int:
    """Raises BadInput for whatever the user has to change, before anything starts; HamrError if nobody answered."""
    request = read_request(args)
    given = load_config(list(request.overrides))
    config, asked = with_policies(given, "policy", request.policies, request.options.cot)
    bench = read_bench(request, config, asked)
    console = Console()
    with Journal(request.output) as journal:
        _ask(request, config, bench, journal, asked, console)
        metrics, rows = evaluated(request, bench, journal)
        write_aside(request.output / "summary.json", json.dumps(metrics, ensure_ascii=False, indent=1) + "\n")
        text = "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows)
        write_aside(request.output / "items.jsonl", text)
    for table in tables(metrics):
        console.print(table)
    # Drawing needs matplotlib, which nothing before it does.
    from hamr.observability.olabench_report import write_olabench_report

    print(f"written: {write_olabench_report(request.output, metrics, rows)}", flush=True)
    return _ended(metrics)


# --- what there is to do -----------------------------------------------------------------------


def read_bench(request: Request, config: Config, asked: Mapping[str, str]) -> Bench:
    items = read_items(request.data)[: request.options.limit] if request.data is not None else []
    ids = [item.sample.id for item in items]
    policies = [
        Policy(
            name=name,
            settings=config.pools[pool].model_dump(mode="json", exclude=SPEED_ONLY),
            at_once=capacity(config.pools[pool]),
        )
        for name, pool in asked.items()
    ]
    for given in request.policies:
        if is_file(given):
            path = Path(given).expanduser()
            policies.append(Policy(name=name_of(given), given=read_responses(path, ids)))
    doubled = [name for name, count in Counter(policy.name for policy in policies).items() if count > 1]
    if doubled:
        raise BadInput("policy", doubled[0], "two policies have this name; rename one of the files")
    labelled = {str(path): read_labelled(path)[: request.options.limit] for path in request.labels}
    wanted = {name for rows in labelled.values() for row in rows for name in row.labels.components}
    for item in items:
        wanted |= set(ALL if request.options.judged == "all" else COMPONENTS[item.subset])
    judges = [judge_of(request, config, name) for name in ALL if name in wanted]
    return Bench(items=items, policies=policies, labelled=labelled, judges=judges)


def judge_of(request: Request, config: Config, component: str) -> Judge:
    """The section of `rewards` of this name, and the pool that it asks. Raises BadInput for one that cannot write, and
    ConfigError for a template that will not do."""
    section = getattr(config.rewards, component)
    if request.judge:
        section = section.model_copy(update={"pool": request.judge})
    pool = writing_pool(config, "judge" if request.judge else f"rewards.{component}.pool", section.pool)
    alone = section.model_copy(update={"weight": 1.0})
    nothing = {name: getattr(config.rewards, name).model_copy(update={"weight": 0.0}) for name in (*ALL, "rubric")}
    rewards = config.rewards.model_copy(
        update={"consistency": ConsistencyConfig(weight=0.0), **nothing, component: alone}
    )
    check_prompts(rewards)
    pools = {pool: config.pools[pool].model_dump(mode="json", exclude=SPEED_ONLY)}
    return Judge(
        component=component,
        pool=pool,
        section=section,
        settings=judge_settings(section, component, pools),
        at_once=capacity(config.pools[pool]),
    )


# --- the work ----------------------------------------------------------------------------------


def _ask(
    request: Request, config: Config, bench: Bench, journal: Journal, asked: Mapping[str, str], console: Console
) -> None:
    """Starts the pools that have something to do; judges are started with the policies, since their work follows."""
    options = request.options
    left = {p.name: len(unanswered(journal, p, bench.items, options)) for p in bench.policies if p.given is None}
    trials = bench.label_trials
    known = [*trials_of(journal, bench.policies, bench.items, options), *trials]
    todo = {judge.component: len(unjudged(journal, judge, known)) for judge in bench.judges}
    if any(left.values()):  # whoever answers now is judged then
        for item in bench.items:
            for name in ALL if options.judged == "all" else COMPONENTS[item.subset]:
                todo[name] = max(todo[name], 1)
    counts = ", ".join(f"{name} {count}" for name, count in left.items())
    console.print(
        f"olabench: {len(bench.items)} items, {len(bench.policies)} policies"
        f"{f' (to answer: {counts})' if counts else ''}, {sum(map(len, bench.labelled.values()))} labelled responses",
        highlight=False,
    )
    wanted = [asked[name] for name, count in left.items() if count]
    wanted += [judge.pool for judge in bench.judges if todo[judge.component]]
    if not wanted:
        return

    async def work(asks: Mapping[str, Ask]) -> None:
        by_policy = {name: asks[pool] for name, pool in asked.items() if pool in asks}
        if any(left.values()):
            with progress({name: count for name, count in left.items() if count}, "answers", console) as report:
                await collect(journal, bench.policies, bench.items, by_policy, options, report)
        every = [*trials_of(journal, bench.policies, bench.items, options), *trials]
        judges = [judge for judge in bench.judges if judge.pool in asks]
        open_now = {judge.component: len(unjudged(journal, judge, every)) for judge in judges}
        with progress({name: count for name, count in open_now.items() if count}, "judged", console) as report:
            await judge_all(journal, judges, every, asks, options, report)

    with_pools(config, wanted, work, run=RUN)


# --- what follows ------------------------------------------------------------------------------


def evaluated(request: Request, bench: Bench, journal: Journal) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The summary, JSON-able, and one row a response."""
    options = request.options
    luck = {"resamples": options.resamples, "seed": options.seed}
    outcomes = {policy.name: _outcomes(bench, policy, journal, request) for policy in bench.policies}
    metrics = {
        "options": options.model_dump(mode="json"),
        "policies": {name: policy_figures(some, **luck) for name, some in outcomes.items()},
        "judges": {judge.component: _judge(judge, bench, journal, request) for judge in bench.judges},
        "grading": {file: graded(rows, _verdicts(bench, file, rows, journal), **luck) for file, rows in _files(bench)},
    }
    rows = [_row(name, outcome) for name, some in outcomes.items() for outcome in some]
    return metrics, rows


def _outcomes(bench: Bench, policy: Policy, journal: Journal, request: Request) -> list[Outcome]:
    options = request.options
    by_item: dict[str, dict[str, Trial]] = {}
    for trial in trials_of(journal, bench.policies, bench.items, options):
        by_item.setdefault(trial.id, {})[trial.component] = trial
    judges = {judge.component: judge for judge in bench.judges}
    found = []
    for item in bench.items:
        response = response_to(journal, policy, item, options)
        judgements, missing = {}, []
        for name, trial in by_item.get(item.sample.id, {}).items():
            if policy.name not in trial.said:
                continue
            verdict = verdict_on(journal, judges[name], trial, policy.name)
            if verdict.judgement is None:
                missing.append(name)
            else:
                judgements[name] = verdict.judgement
        found.append(
            Outcome(
                item=item,
                response=response,
                reading=None if response.text is None else read_response(response.text, options.cot),
                judgements=judgements,
                missing=tuple(missing),
            )
        )
    return found


def _files(bench: Bench) -> list[tuple[str, Sequence[Labelled]]]:
    return list(bench.labelled.items())


def _verdicts(bench: Bench, file: str, rows: Sequence[Labelled], journal: Journal) -> dict[tuple[str, str], Any]:
    judges = {judge.component: judge for judge in bench.judges}
    alone = Bench(items=(), policies=(), labelled={file: rows}, judges=())
    found = {}
    for trial in alone.label_trials:
        judgement = verdict_on(journal, judges[trial.component], trial, LABELLED).judgement
        if judgement is not None:
            found[trial.id.removeprefix(f"{file}:"), trial.component] = judgement
    return found


def _judge(judge: Judge, bench: Bench, journal: Journal, request: Request) -> dict[str, Any]:
    """Who judged, how much, and why not."""
    trials = [*trials_of(journal, bench.policies, bench.items, request.options), *bench.label_trials]
    verdicts = [
        verdict_on(journal, judge, trial, name)
        for trial in trials
        if trial.component == judge.component
        for name in trial.said
    ]
    return {
        "pool": judge.pool,
        "model": judge.settings["pools"][judge.pool]["model"],
        "prompts": judge.settings["prompts"],
        "asked": len(verdicts),
        "missing": dict(Counter(v.failure for v in verdicts if v.failure is not None)),
        "compared": max((v.judgement.compared for v in verdicts if v.judgement is not None), default=1),
    }


def _row(policy: str, outcome: Outcome) -> dict[str, Any]:
    response, item = outcome.response, outcome.item
    return {
        "policy": policy,
        "id": item.sample.id,
        "kind": item.kind,
        "subset": item.subset,
        "trap": item.trap,
        "response": response.text,
        "malformed": outcome.reading.malformed if outcome.reading else "",
        "failure": response.failure,
        "seconds": response.seconds,
        "tokens": response.tokens,
        "cut_off": response.cut_off,
        "judgements": {
            name: {"grade": j.grade, "labels": list(j.labels), "reason": j.reason}
            for name, j in outcome.judgements.items()
        },
        "missing": list(outcome.missing),
    }


def _ended(metrics: Mapping[str, Any]) -> int:
    """Says what is missing in passing. Raises HamrError where nobody answered, or no judge judged."""
    for name, groups in metrics["policies"].items():
        counts = groups["all"]["responses"]
        if not counts["given"]:
            raise HamrError(f"{name} answered nothing; see its pool's logs, and call again")
    judges = metrics["judges"]
    asked, missing = (
        sum(j["asked"] for j in judges.values()),
        sum((Counter(j["missing"]) for j in judges.values()), Counter()),
    )
    if asked and sum(missing.values()) == asked:
        raise HamrError(f"no judge gave a judgement ({dict(missing)}); see the pools' logs, and call again")
    away = missing["judge_timeout"] + missing["judge_unavailable"]
    failed = sum(groups["all"]["responses"]["failed"] for groups in metrics["policies"].values())
    if away or failed:
        print(f"not answered: {failed} by policies, {away} by judges; the same command asks for what failed in passing")
    return 0
