"""Summary of an evaluation: metrics of every policy and every judge, and of judges on labelled responses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hamr.bench.answers import RESPONSES, PolicyUnderTest
from hamr.bench.folder import usage
from hamr.bench.olabench.figures import ItemOutcome, policy_figures
from hamr.bench.olabench.grading import grade_judges
from hamr.bench.olabench.items import BenchItem
from hamr.bench.olabench.journal import VERDICTS, Journal
from hamr.bench.olabench.labelled import Labelled
from hamr.bench.olabench.run import LABELLED, ComponentJudge, OlaBenchWork, Trial, label_trials, verdict_on
from hamr.config.benchmarks import OlabenchConfig
from hamr.types import Judgement


def summarise(bench: OlaBenchWork, journal: Journal) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the summary, JSON-serialisable, and one row per response of a policy."""
    options, trials = bench.options, bench.trials(journal)
    luck = {"resamples": options.resamples, "seed": options.seed}
    known = {(trial.id, trial.component): trial for trial in trials}
    labels: dict[tuple[str, str], tuple[Labelled, ...]] = {}
    for row in (row for rows in bench.labelled.values() for row in rows):
        key = row.id, row.response.strip()
        labels[key] = (*labels.get(key, ()), row)
    outcomes = {
        policy.name: [_outcome(bench, policy, item, known, labels, journal) for item in bench.items]
        for policy in bench.policies
    }
    metrics = {
        "options": options.model_dump(mode="json", include=set(OlabenchConfig.model_fields)),
        "policies": {name: policy_figures(some, **luck) for name, some in outcomes.items()},
        "usage": usage(journal.folder, (RESPONSES, VERDICTS)),
        "judges": {judge.name: _judge(judge, trials, journal) for judge in bench.judges},
        "grading": {
            file: grade_judges(rows, _verdicts(bench, file, rows, journal), **luck)
            for file, rows in bench.labelled.items()
        },
    }
    return metrics, [_row(name, outcome) for name, some in outcomes.items() for outcome in some]


def _outcome(
    bench: OlaBenchWork,
    policy: PolicyUnderTest,
    item: BenchItem,
    trials: Mapping[tuple[str, str], Trial],
    labels: Mapping[tuple[str, str], tuple[Labelled, ...]],
    journal: Journal,
) -> ItemOutcome:
    response = bench.response_to(journal, policy, item)
    judgements, missing = {}, []
    for judge in bench.judges:
        trial = trials.get((item.sample.id, judge.component))
        if trial is None or policy.name not in trial.responses or not judge.judges(trial):
            continue
        judgement = verdict_on(journal, judge, trial, policy.name).judgement
        if judgement is None:
            missing.append(judge.component)
        else:
            judgements[judge.component] = judgement
    return ItemOutcome(
        item=item,
        response=response,
        reading=None if response.text is None else bench.read(response.text),
        judgements=judgements,
        missing=tuple(missing),
        labelled=labels.get((item.sample.id, (response.text or "").strip()), ()),
    )


def _verdicts(
    bench: OlaBenchWork, file: str, rows: Sequence[Labelled], journal: Journal
) -> dict[tuple[str, str], Judgement]:
    found = {}
    for row in rows:
        for trial in label_trials(file, row):
            judge = next(judge for judge in bench.judges if judge.judges(trial))
            judgement = verdict_on(journal, judge, trial, LABELLED).judgement
            if judgement is not None:
                found[row.id, trial.component] = judgement
    return found


def _judge(judge: ComponentJudge, trials: Sequence[Trial], journal: Journal) -> dict[str, Any]:
    """Return the settings of a judge, the number of its judgements, and the missing ones by reason."""
    mine = [trial for trial in trials if judge.judges(trial)]
    verdicts = [verdict_on(journal, judge, trial, name) for trial in mine for name in trial.responses]
    return {
        "pool": judge.pool,
        "model": judge.settings["pools"][judge.pool]["model"],
        "prompts": judge.settings["prompts"],
        "asked": len(verdicts),
        "missing": dict(Counter(v.failure for v in verdicts if v.failure is not None)),
        "compared": max((v.judgement.compared for v in verdicts if v.judgement is not None), default=1),
    }


def _row(policy: str, outcome: ItemOutcome) -> dict[str, Any]:
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
