"""`hamr evaluate benchmark=olabench`: policies answer and judges grade; judges are tested on known labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.console import Console

from hamr.apps.evaluate.olabench.report import olabench_page
from hamr.apps.evaluate.policies import AskedPolicies, with_policies
from hamr.apps.evaluate.results import write_results
from hamr.apps.shared.pools_up import judging_pool, pools_of, with_pools
from hamr.apps.shared.progress import progress
from hamr.bench.answers import RESPONSES
from hamr.bench.olabench.items import read_items
from hamr.bench.olabench.journal import VERDICTS, Journal
from hamr.bench.olabench.labelled import read_labelled
from hamr.bench.olabench.run import (
    ALL,
    ComponentJudge,
    OlaBenchWork,
    item_language,
    judge_all,
    judge_settings,
    open_trials,
    verdict_on,
)
from hamr.bench.olabench.summary import summarise
from hamr.config.judged import JudgedRewards
from hamr.config.pools import SPEED_ONLY
from hamr.config.schema import Config
from hamr.errors import HamrError, first_failure
from hamr.protocols import Ask
from hamr.rewards.judged import check_prompts
from hamr.types import Language

if TYPE_CHECKING:
    from hamr.apps.evaluate.command import EvaluateOlabench

RUN = "olabench"


def start(request: EvaluateOlabench) -> int:
    """Run the evaluation. Raises BadInput for invalid input, before anything starts; HamrError if no policy
    answered."""
    asked = with_policies(request.config(), "policy", request.policy, request.cot, request)
    bench = read_bench(request, asked)
    console = Console()
    with Journal(request.output) as journal:
        _ask(bench, journal, asked, console)
        metrics, rows = summarise(bench, journal)
        write_results(olabench_page(metrics, rows), metrics, rows, request.output / "summary.json", console)
    return _exit_code(metrics, bench, journal)


# --- items and judges --------------------------------------------------------------------------


def read_bench(request: EvaluateOlabench, asked: AskedPolicies) -> OlaBenchWork:
    config = asked.config
    every = read_items(request.data) if request.data is not None else []
    items, known = every[: request.limit], [item.sample.id for item in every]
    policies = asked.under_test(request.policy, known[: request.limit], known)
    labelled = {str(path): read_labelled(path)[: request.limit] for path in request.labels}
    bench = OlaBenchWork(options=request, items=items, policies=policies, labelled=labelled, judges=())
    judged = [(item, bench.components(item)) for item in items]
    judged += [(row.item, row.labels.components) for rows in labelled.values() for row in rows]
    wanted = {(name, item_language(item.sample)) for item, names in judged for name in names}
    judges = [
        judge
        for name in ALL
        if (languages := sorted(language for component, language in wanted if component == name))
        for judge in judges_of(request, config, name, languages)
    ]
    return replace(bench, judges=judges)


def judges_of(
    request: EvaluateOlabench, config: Config, component: str, languages: Sequence[Language]
) -> list[ComponentJudge]:
    """Return the judges of a section of `rewards` with their pool: one per language of the items, with its prompt.

    A section with a template of its own has one judge for all. Raises BadInput for a pool that can neither generate
    text nor is trained for the component, and ConfigError for an invalid template.
    """
    section = getattr(config.rewards, component)
    if request.judge:
        section = section.model_copy(update={"pool": request.judge})
    key = "judge" if request.judge else f"rewards.{component}.pool"
    pool = judging_pool(config, key, section.pool, component)
    pools = {pool: config.pools[pool].model_dump(mode="json", exclude=SPEED_ONLY)}
    found = []
    for language in languages[:1] if section.prompt else languages:
        own = section if section.prompt else section.model_copy(update={"language": language})
        check_prompts(JudgedRewards().model_copy(update={component: own.model_copy(update={"weight": 1.0})}))
        judge = ComponentJudge(
            component=component,
            pool=pool,
            section=own,
            settings=judge_settings(own, component, pools),
            at_once=config.pools[pool].places,
            language=language if len(languages) > 1 and not section.prompt else None,
        )
        found.append(judge)
    return found


# --- the work ----------------------------------------------------------------------------------


def _ask(bench: OlaBenchWork, journal: Journal, asked: AskedPolicies, console: Console) -> None:
    """Start the pools with remaining work; judges are started with the policies, since their work follows."""
    left = {p.name: len(bench.open_items(journal, p)) for p in bench.policies if p.given is None}
    trials = bench.trials(journal)
    busy = {judge.name for judge in bench.judges if open_trials(journal, judge, trials)}
    if any(left.values()):  # the new responses are judged later in this call
        named = {name for item in bench.items for name in bench.components(item)}
        busy |= {judge.name for judge in bench.judges if judge.component in named}
    counts = ", ".join(f"{name} {count}" for name, count in left.items())
    console.print(
        f"olabench: {len(bench.items)} items, {len(bench.policies)} policies"
        f"{f' (to answer: {counts})' if counts else ''}, {sum(map(len, bench.labelled.values()))} labelled responses",
        highlight=False,
    )
    wanted = [name for name, count in left.items() if count and name in asked.pools]
    wanted += [judge.pool for judge in bench.judges if judge.name in busy]
    if not wanted:
        return

    async def work(asks: Mapping[str, Ask]) -> None:
        if any(left.values()):
            counts = {name: count for name, count in left.items() if count}
            async with asked.asks(asks) as by_policy:
                with progress(counts, console, "answers") as report:
                    await bench.collect(journal, by_policy, report)
        trials = bench.trials(journal)
        judges = [one for one in bench.judges if one.pool in asks]
        open_now = {one.name: len(open_trials(journal, one, trials)) for one in judges}
        with progress({name: count for name, count in open_now.items() if count}, console, "judged") as report:
            await judge_all(journal, judges, trials, asks, bench.options, report)

    with_pools(asked.config, wanted, work, run=pools_of(RUN, journal.folder))


def _exit_code(metrics: Mapping[str, Any], bench: OlaBenchWork, journal: Journal) -> int:
    """Print the number of transient failures. Raises HamrError where no policy answered or no judge judged."""
    for policy in bench.policies:
        counts = metrics["policies"][policy.name]["all"]["responses"]
        if not counts["given"]:
            cause = first_failure(bench.response_to(journal, policy, item).detail for item in bench.items)
            remedy = f"see {journal.folder / RESPONSES} and run the command again"
            raise HamrError(f"{policy.name} answered nothing{cause}; {remedy}")
    judges = metrics["judges"]
    asked, missing = (
        sum(j["asked"] for j in judges.values()),
        sum((Counter(j["missing"]) for j in judges.values()), Counter()),
    )
    if asked and sum(missing.values()) == asked:
        cause = first_failure(
            verdict_on(journal, judge, trial, name).detail
            for judge in bench.judges
            for trial in bench.trials(journal)
            if judge.judges(trial)
            for name in trial.responses
        )
        remedy = f"see {journal.folder / VERDICTS} and run the command again"
        raise HamrError(f"no judge gave a judgement ({dict(missing)}){cause}; {remedy}")
    away = missing["judge_timeout"] + missing["judge_unavailable"]
    failed = sum(groups["all"]["responses"]["failed"] for groups in metrics["policies"].values())
    if away or failed:
        print(f"not answered: {failed} by policies, {away} by judges; the same command retries transient failures")
    return 0
